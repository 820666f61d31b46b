"""Runs of the tiny model as jobs on the two-node Slurm: submitted, followed by their steps, compared with another.

One process a node, tensor parallel across the two. `test_slurm_*.py` and `benchmarks/cluster/faults.py` share it.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.data import curriculum
from retool_mcore.metrics import records
from retool_mcore.state import checkpoints
from tests.support.slurm.slurm_cluster import Cluster

RETOOL = str(Path(sys.executable).with_name("retool"))
ENDS = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
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
# The environment that these jobs run in, and no RETOOL_ setting of whoever starts them.
ENV = {"RETOOL_VENV": sys.prefix, "RETOOL_SITE": "default"}
# What must come out alike where a step is done again from a checkpoint.
COMPARED = {
    "sft": ("train/loss",),
    "rl": ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean", "actor/entropy"),
}
TOLERANCE = 1e-4  # relative


def retool(cluster: Cluster, *arguments: str, env: Mapping[str, str] | None = None) -> str:
    return cluster.run(RETOOL, *arguments, env=ENV | dict(env or {}), timeout_s=300)


def prepare(cluster: Cluster, runs: Path, *overrides: str) -> None:
    """Data and model of the run `t` in `runs`."""
    retool(cluster, "prepare", "name=t", f"runs_dir={runs}", *SIZE, *overrides)


def fork(runs: Path, to: Path, *more: str) -> Path:
    """A runs folder whose run `t` has the data and the model of that in `runs`, and its parts `more`."""
    for part in ("data", "model", "prepare", *more):
        shutil.copytree(runs / "t" / part, to / "t" / part, symlinks=True)
    return to


@dataclass(frozen=True)
class Job:
    """A submitted stage of the run `t` in `runs`."""

    cluster: Cluster
    id: str
    stage: str
    runs: Path
    overrides: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return self.runs / "t" / self.stage

    def output(self) -> str:
        """What the job printed so far, all its starts."""
        out = self.runs / f"t/slurm/{self.id}-{self.stage}.out"
        return out.read_text(errors="replace") if out.exists() else ""

    def state(self) -> dict[str, str]:
        return self.cluster.job(self.id)

    def attempts(self) -> list[dict[int, dict]]:
        """Metrics by step, of each attempt that ended a step."""
        return [steps for steps in map(_read, sorted(self.folder.glob("metrics/attempt_*.jsonl"))) if steps]

    def last_step(self) -> int:
        """The last step in the record, 0 where there is none."""
        return max((max(attempt) for attempt in self.attempts()), default=0)

    def wait_for_step(self, attempt: int, step: int, timeout_s: float = 600) -> None:
        """Waits for the end of `step` in the attempt (from 1; those without a step do not count)."""
        deadline = time.monotonic() + timeout_s
        while not (len(done := self.attempts()) >= attempt and max(done[attempt - 1]) >= step):
            assert time.monotonic() < deadline, self.output()[-6000:]
            assert self.state()["JobState"] not in ENDS, self.output()[-6000:]
            time.sleep(0.1)

    def finish(self, timeout_s: float = 1500) -> dict[str, str]:
        """Waits until the job has ended for good; its last state must be COMPLETED."""
        ended = self.cluster.wait(self.id, *ENDS, timeout_s=timeout_s)
        assert ended["JobState"] == "COMPLETED", self.output()[-6000:]
        return ended


def submit(cluster: Cluster, stage: str, runs: Path, *overrides: str, env: Mapping[str, str] | None = None) -> Job:
    """Submits a stage of the run `t` as a user does."""
    said = retool(cluster, "submit", stage, "name=t", f"runs_dir={runs}", *SIZE, *overrides, env=env)
    return Job(cluster, re.search(rf"^{stage}: job (\d+)", said, re.MULTILINE)[1], stage, runs, overrides)


def wrong_steps(
    attempts: list[dict[int, dict]], undisturbed: Mapping[int, Mapping[str, float]], stage: str
) -> tuple[list[int], list[int]]:
    """(steps that are missing from the record, steps that came out otherwise than undisturbed in any attempt).

    A step that is done again from a checkpoint is the same step when its figures are; one that is applied twice, or
    left out, changes the figures of all that follow.
    """
    done = {step for steps in attempts for step in steps}
    lost = [step for step in undisturbed if step not in done]
    changed = set()
    for steps in attempts:
        changed.update(set(range(min(steps), max(steps) + 1)) - set(steps))
        for step, values in steps.items():
            wanted = undisturbed.get(step)
            if wanted is None or not all(_alike(values.get(name), wanted[name]) for name in COMPARED[stage]):
                changed.add(step)
    return lost, sorted(changed)


def wrong_groups(job: Job, *, n: int, ahead: int) -> tuple[int, dict[int, int]]:
    """(groups that are lost, groups that are trained again by step) up to the last checkpoint of a run whose rollouts
    run ahead, in its first epoch: no step comes out twice alike there, but each problem is drawn once.

    A run has drawn what it has trained on, what it dropped (for a failed rollout, say) and the `ahead` groups that the
    checkpoint holds for steps to come; a group trained on twice leaves another in there. A group of fewer than `n`
    trajectories is a lost one.
    """
    if (last := checkpoints.latest(job.folder / "checkpoints")) is None:
        return 0, {}
    end = checkpoints.step_of(last)
    seen: set[tuple] = set()
    lost, again = 0, {}
    for step, path in records.step_files(job.folder / "trajectories").items():
        if step > end:
            break
        rows = records.read_step(path, columns=("data_source", "index", "sample"))
        samples = {(row["data_source"], row["index"], row["sample"]) for row in rows}
        groups = {sample[:2] for sample in samples}
        lost += sum(not {(*group, sample) for sample in range(n)} <= samples for group in groups)
        again[step] = len(groups & seen) + (len(rows) > len(samples))
        seen |= groups
    done = {step: metrics for steps in job.attempts() for step, metrics in steps.items() if step <= end}
    dropped = sum(v for metrics in done.values() for k, v in metrics.items() if k.startswith("filters/groups/"))
    drawn = json.loads((last / curriculum.STATE).read_text())["offered"]
    lost += int(drawn - len(seen) - dropped - ahead) - sum(again.values())
    return lost, {step: count for step, count in again.items() if count}


def _alike(value: float | None, wanted: float) -> bool:
    return value is not None and abs(value - wanted) <= max(TOLERANCE * abs(wanted), 1e-6)


def _read(path: Path) -> dict[int, dict]:
    steps: dict[int, dict] = {}
    # A writer that is at work, or was killed, leaves half a line.
    for line in path.read_text().split("\n")[:-1]:
        record = json.loads(line)
        steps.setdefault(record["step"], {}).update(record["data"])
    return steps
