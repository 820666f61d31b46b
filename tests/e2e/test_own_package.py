"""docs/afternoons.md, part d, as it stands there: a package of the user's own is cold-started and trained."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_runs import metrics_of

from retool_mcore.metrics.records import read_step, step_files

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

PAGE = Path(__file__).parents[2] / "docs/afternoons.md"
WEIGHT = 0.05  # of the page's reward


def part() -> tuple[list[str], list[str]]:
    """The part's blocks of Python and of bash."""
    text = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (own,) = [section for section in text if section.startswith("d. ")]
    return tuple(re.findall(rf"^```{kind}\n(.*?)^```", own, re.MULTILINE | re.DOTALL) for kind in ("python", "bash"))


def follow(tmp_path: Path, monkeypatch, *scripts: str) -> None:
    """Write the page's files into a folder and run its commands there."""
    for block in part()[0]:
        (tmp_path / re.match(r"# (\w+\.py):", block)[1]).write_text(block)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    done = subprocess.run(
        ["bash", "-euc", "\n".join(["PYTHONPATH=${PYTHONPATH:-}", *scripts])],
        cwd=tmp_path, capture_output=True, text=True, timeout=1000,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def trajectories(run: Path) -> list[dict]:
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == [1, 2]
    assert all(values["actor/audit/gradient_interpreter_tokens"] == 0 for values in metrics.values())
    records = [record for path in step_files(run / "rl/trajectories").values() for record in read_step(path)]
    assert len(records) == 32
    return records


def check_guesses(records: list[dict]) -> None:
    calls = [call for record in records for call in record["calls"]]
    assert {"odd", "even"} & {call["stdout"] for call in calls if call["tool"] == "parity"}, (
        "no call of the user's tool"
    )
    guesses = [call for call in calls if call["tool"] == "guess" and call["status"] == "success"]
    assert guesses and {float(call["value"]) for call in guesses} <= {0.0, 1.0}, "no step of the environment"
    assert {call["stdout"] for call in guesses} <= {"Larger.", "Smaller.", "Right."}
    for record in records:
        given = sum(float(call["value"]) for call in record["calls"] if call["value"] is not None)
        assert record["score"] == pytest.approx(given - WEIGHT * len(record["calls"]), abs=1e-6)


@pytest.mark.nightly
def test_reward_tool_and_environment_of_ones_own(tmp_path, monkeypatch):
    follow(tmp_path, monkeypatch, part()[1][0])
    check_guesses(trajectories(tmp_path / "runs/d"))


@pytest.mark.nightly
def test_an_environment_of_verifiers_beside_it(tmp_path, monkeypatch):
    pytest.importorskip("verifiers", reason="pip install -c launch/constraints-cpu.txt verifiers==0.1.10")
    first, second = ("\n".join(line for line in block.splitlines() if "pip install" not in line) for block in part()[1])
    follow(tmp_path, monkeypatch, first.partition("retool prepare")[0], second)
    records = trajectories(tmp_path / "runs/v")
    check_guesses([record for record in records if record["data_source"] == "guess"])
    sums = [record for record in records if record["data_source"] == "vf_sums"]
    added = [
        call for record in sums for call in record["calls"] if call["tool"] == "add" and call["status"] == "success"
    ]
    assert added and all(call["stdout"] == str(sum(json.loads(call["arguments"]).values())) for call in added)
    for record in sums:  # the rubric looks at how the text ends
        right = record["score"] + WEIGHT * len(record["calls"])
        assert right == pytest.approx(record["acc"], abs=1e-6) or right == pytest.approx(1)
