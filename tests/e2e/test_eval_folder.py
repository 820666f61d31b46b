"""A Hugging Face folder and a file of problems, and nothing else: `retool eval` reads, samples, grades and tells."""

import json
import shutil

import pytest
from e2e_runs import retool

from retool_mcore.files import read_json_lines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SIZES = ("data.max_prompt_tokens=64", "data.max_response_tokens=320", "data.max_observation_tokens=192")


def test_a_model_is_evaluated_on_a_file(cold_started, tmp_path):
    shutil.copytree(cold_started / "t/sft/policy", tmp_path / "mine", symlinks=False)
    rows = [{"q": f"{n} + {n}", "a": n + n} for n in range(10, 16)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("data=file", f"data.file.eval={tmp_path}/sums.jsonl", "data.file.question=q", "data.file.answer=a")
    words = ("eval", f"model={tmp_path}/mine", *data, "data.prompt=tiny", *SIZES, "k=2", f"runs_dir={tmp_path}/runs")
    done = retool(*words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / "runs/eval-mine"
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["eval-mine"]
    records = read_json_lines(run / "eval/init-sums/trajectories.jsonl")
    assert len(records) == 12 and {record["data_source"] for record in records} == {"sums"}
    metrics = json.loads((run / "eval/init-sums/metrics.json").read_text())
    assert {"mean@2", "best@2", "maj@2"} <= set(metrics["accuracy"]["sums"])
    assert "mean@2" in done.stdout and "sums" in done.stdout.splitlines()[-2]
    again = retool(*words)  # complete: only the table
    assert again.returncode == 0 and "complete already" in again.stdout and "mean@2" in again.stdout
