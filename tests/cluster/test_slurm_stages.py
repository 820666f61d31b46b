"""SFT and RL on two nodes, as a user submits them: to the end, stopped near the time limit, killed, and refused.

The tiny model, one process a node, tensor parallel across the two.
"""

import json
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

RETOOL = str(Path(sys.executable).with_name("retool"))
SIZE = (
    "parallel=cpu-2nodes",
    "data.arithmetic.sft=640",
    "data.arithmetic.train=64",
    "data.arithmetic.validation=32",
    "data.sft.steps=24",
    "data.sft.warmup_steps=2",
    "data.sft.save_every=8",
    "data.sft.eval_every=24",
    "data.rl.batch=4",
    "data.rl.mini_batch=4",
    "data.rl.n=4",
    "data.rl.steps=2",
    "data.rl.save_every=2",
)
# The environment that these tests run in, and no RETOOL_ setting of whoever runs them.
ENV = {"RETOOL_VENV": sys.prefix, "RETOOL_SITE": "default"}

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


def retool(cluster, *arguments: str) -> str:
    return cluster.run(RETOOL, *arguments, env=ENV, timeout_s=300)


def submit(cluster, stage: str, runs: Path, *overrides: str) -> str:
    """Submits a stage of the run `t`; the job's number."""
    said = retool(cluster, "submit", stage, "name=t", f"runs_dir={runs}", *SIZE, *overrides)
    return re.search(rf"^{stage}: job (\d+)", said, re.MULTILINE)[1]


def output(runs: Path, job: str, stage: str) -> str:
    return (runs / f"t/slurm/{job}-{stage}.out").read_text()


def finish(cluster, job: str, stage: str, runs: Path, timeout_s: float = 900) -> dict[str, str]:
    """Waits until the job has ended for good; its last state must be COMPLETED."""
    ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
    ended = cluster.wait(job, *ends, timeout_s=timeout_s)
    assert ended["JobState"] == "COMPLETED", output(runs, job, stage)[-6000:]
    return ended


def attempts(stage_dir: Path) -> list[dict[int, dict]]:
    """Metrics by step, of each attempt that ended a step."""
    found = []
    for path in sorted(stage_dir.glob("metrics/attempt_*.jsonl")):
        steps: dict[int, dict] = {}
        # A writer that is at work, or was killed, leaves half a line.
        for line in path.read_text().split("\n")[:-1]:
            record = json.loads(line)
            steps.setdefault(record["step"], {}).update(record["data"])
        found.append(steps)
    return [steps for steps in found if steps]


def wait_for_step(cluster, job: str, stage: str, runs: Path, attempt: int, step: int, timeout_s: float = 600) -> None:
    deadline = time.monotonic() + timeout_s
    while not (len(done := attempts(runs / "t" / stage)) >= attempt and max(done[attempt - 1]) >= step):
        assert time.monotonic() < deadline, output(runs, job, stage)[-6000:]
        time.sleep(0.1)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, slurm) -> Path:
    """A runs folder whose run `t` has its data and model."""
    runs = tmp_path_factory.mktemp("runs")
    retool(slurm, "prepare", "name=t", f"runs_dir={runs}", *SIZE)
    return runs


@pytest.fixture(scope="session")
def cold_started(prepared, slurm) -> Path:
    """`prepared`, with SFT carried to its end by one undisturbed job."""
    job = submit(slurm, "sft", prepared)
    assert finish(slurm, job, "sft", prepared)["Restarts"] == "0"
    return prepared


@pytest.fixture
def fresh(prepared, tmp_path) -> Path:
    """A runs folder of this test's own, with data and model of `prepared` and nothing else."""
    for part in ("data", "model", "prepare"):
        shutil.copytree(prepared / "t" / part, tmp_path / "runs/t" / part)
    return tmp_path / "runs"


def test_sft_whole(cluster, cold_started):
    (steps,) = attempts(cold_started / "t/sft")
    assert sorted(steps) == list(range(1, 25))
    assert steps[24]["train/loss"] < 0.8 * steps[1]["train/loss"]
    assert (cold_started / "t/sft/policy/config.json").is_file()
    assert "sft" in retool(cluster, "status", str(cold_started / "t"))


def test_sft_stopped_by_usr1_then_killed_ends_as_an_undisturbed_one(cluster, cold_started, fresh):
    """The signal before the time limit, then kill -9 of a rank on the second node: one job, three attempts."""
    job = submit(cluster, "sft", fresh)
    wait_for_step(cluster, job, "sft", fresh, attempt=1, step=2)
    cluster.run("scancel", "--signal=USR1", "--batch", job)  # as Slurm does for --signal=B:USR1@600
    wait_for_step(cluster, job, "sft", fresh, attempt=2, step=9)
    ranks = [pid for pid, command in cluster.processes("n2").items() if "-m retool_mcore.train.sft" in command]
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    assert ranks
    assert finish(cluster, job, "sft", fresh)["Restarts"] == "2"

    first, second, third = attempts(fresh / "t/sft")
    assert 2 <= max(first) < 24 and max(second) < 24
    # Stopped on request, no step is lost or done twice; killed, it goes on from the last whole checkpoint.
    assert min(second) == max(first) + 1
    assert min(third) - 1 in (max(first), 8, 16) and min(third) <= max(second) + 1
    done = first | second | third
    (undisturbed,) = attempts(cold_started / "t/sft")
    assert sorted(done) == sorted(undisturbed)
    for step, metrics in undisturbed.items():
        assert done[step]["train/loss"] == pytest.approx(metrics["train/loss"], rel=1e-4), step


def test_a_wrong_path_is_refused_with_its_sentence(cluster, fresh):
    job = submit(cluster, "sft", fresh, "init_from=/no/such/model")
    ended = cluster.wait(job, "FAILED", timeout_s=120)
    said = output(fresh, job, "sft")
    assert ended["ExitCode"] == "2:0" and ended["Restarts"] == "0", said
    assert re.search(r"^retool: .*/no/such/model", said, re.MULTILINE), said
    assert "Traceback" not in said


@pytest.mark.e2e
def test_rl_over_two_nodes(cluster, cold_started):
    """Ray across the two nodes, the policy's halves on different ones."""
    job = submit(cluster, "rl", cold_started)
    assert finish(cluster, job, "rl", cold_started)["Restarts"] == "0"
    (steps,) = attempts(cold_started / "t/rl")
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-5
    assert (cold_started / "t/rl/policy/config.json").is_file()
