"""What the end-to-end tests share: the `retool` command at the smallest size, and a reader of its metrics."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.forked_python import PYTHON
from retool_mcore.runner import processes

COMMAND = str(Path(sys.executable).with_name("retool"))

# Enough for some of the policy's programs to run; two epochs of the data below.
SFT_STEPS = 64

# The pipeline at the smallest size that still passes through every part of it.
SMALL = (
    "data.arithmetic.sft=1120",
    "data.arithmetic.train=64",
    "data.arithmetic.validation=32",
    "data.arithmetic.held_back=4",
    f"data.sft.steps={SFT_STEPS}",
    "data.sft.warmup_steps=2",
    "data.sft.save_every=32",
    "data.sft.eval_every=32",
    "data.rl.batch=4",
    "data.rl.mini_batch=4",
    "data.rl.n=4",
    "data.rl.steps=2",
    "data.rl.save_every=1",
)


# Four steps of RL as two tests look at them: the pipeline's middle, and what an interrupted run must equal. The reward
# grows worse with every token above 10, so that even this untrained policy's groups have advantages and the optimizer
# has a state to lose.
RL_STEPS = 4
RESUMABLE = (
    "recipe.overlong_buffer=150",
    f"data.rl.steps={RL_STEPS}",
    "data.rl.save_every=1",
    "data.rl.eval_every=1",
    "train.eval_samples=2",
    "train.eval_share=1",
)


def forked(*args: str) -> dict:
    """What subprocess starts the installed command with as a fork of the template, like the processes of its stages:
    it imports torch and transformers for its checks. A template refuses another environment than its own."""
    return {"args": [os.environ[PYTHON], COMMAND, *args], "env": stage_env({"parallel": {"device": "cpu"}})}


def retool(*args: str, timeout_s: float = 900, plainly: bool = False) -> subprocess.CompletedProcess:
    """Run the installed command with `args`, `plainly` as a user's shell does; the output is for assertion messages."""
    command = {"args": [COMMAND, *args]} if plainly else forked(*args)
    return subprocess.run(**command, capture_output=True, text=True, timeout=timeout_s)


def succeed(stage: str, runs: Path, *overrides: str, plainly: bool = False) -> Path:
    """Run a stage of the run `t` under `runs`, at size SMALL, and return the run's folder."""
    done = retool(stage, "name=t", f"runs_dir={runs}", *SMALL, *overrides, plainly=plainly)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return runs / "t"


@contextmanager
def started(stage: str, runs: Path, *overrides: str) -> Iterator[subprocess.Popen]:
    """The launcher of a stage of the run `t` under `runs`; however the body ends, nothing that it started lives on."""
    command = forked(stage, "name=t", f"runs_dir={runs}", *overrides)
    process = subprocess.Popen(**command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    known: set[processes.Process] = set()
    try:
        yield process
    finally:
        lock = runs / "t" / stage / ".lock"
        stage_id = lock.read_text().strip() if lock.exists() else ""
        if stage_id:
            known = processes.find(stage_id)  # with what is told only by its parent, before that one goes
        process.kill()
        process.wait()
        if stage_id:
            processes.stop(stage_id, known, grace_s=0)


def metrics_of(stage_dir: Path) -> dict[int, dict[str, float]]:
    """Metrics by step over all attempts of a stage; a step that was run again counts with its last values."""
    steps = {}
    for path in sorted(stage_dir.glob("metrics/attempt_*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            steps.setdefault(record["step"], {}).update(record["data"])
    return steps


def whole_steps(run: Path, steps: int) -> dict[int, dict[str, float]]:
    """Metrics of RL by step, of whose batches every trajectory, and every segment of one, is accounted for."""
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == list(range(1, steps + 1))
    for values in metrics.values():
        for name in ("actor/pg_loss", "actor/grad_norm", "reward/accuracy"):
            assert math.isfinite(values[name]), (name, values)
        assert values["filters/groups/failed"] == 0
        dropped = sum(value for name, value in values.items() if name.startswith("filters/samples/"))
        assert dropped == 16 * values.get("gateway/segments", 1), "kept and left-out samples are the whole batch"
        assert values["filters/samples/kept"] >= 1
    return metrics
