"""STOP while the cold start runs: it stops at a step with exit code 75, and goes on as if nothing had happened."""

import json
import subprocess
import time

import pytest
from e2e_runs import SFT_STEPS, SMALL, forked, metrics_of, succeed

from retool_mcore.state import checkpoints

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def test_the_cold_start_stops_at_a_step_and_goes_on(cold_started, tmp_path):
    undisturbed = metrics_of(cold_started / "t/sft")
    folder = tmp_path / "t/sft"
    folder.mkdir(parents=True)
    for part in ("data", "model"):
        (tmp_path / "t" / part).symlink_to(cold_started / "t" / part)
    (folder / "STOP").touch()  # of an earlier attempt: forgotten at the start
    command = forked("sft", "name=t", f"runs_dir={tmp_path}", *SMALL)
    process = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    deadline = time.monotonic() + 500
    while 2 not in metrics_of(folder):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    (folder / "STOP").touch()
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 75, output
    last = checkpoints.step_of(checkpoints.latest(folder / "checkpoints"))
    assert 2 <= last < SFT_STEPS and sorted(metrics_of(folder)) == list(range(1, last + 1))
    assert f"sft: stopped at step {last}, start it again to go on" in output
    assert not (folder / "STOP").exists() and not (folder / "COMPLETE").exists()

    resumed = metrics_of(succeed("sft", tmp_path) / "sft")
    lines = [line for path in folder.glob("metrics/*.jsonl") for line in path.read_text().splitlines()]
    trained = [record["step"] for record in map(json.loads, lines) if "train/loss" in record["data"]]
    assert sorted(trained) == list(range(1, SFT_STEPS + 1))
    for step in range(1, SFT_STEPS + 1):
        for name in ("train/lr", "train/loss", "train/global_tokens"):
            assert resumed[step][name] == pytest.approx(undisturbed[step][name], rel=1e-4), (step, name)
    assert (folder / "COMPLETE").exists()
    assert checkpoints.policy_folder(folder / f"checkpoints/global_step_{SFT_STEPS}").is_dir()
