"""How a running stage is asked to stop at a step: someone creates RUN/<stage>/STOP.

The trainer ends its step, saves a whole checkpoint and honours the request: STOP becomes STOPPED, which holds the last
step. Files, because the one who asks (Slurm's job script, a user on another node) shares nothing else with the trainer.
"""

import os
from pathlib import Path

EXIT_CODE = os.EX_TEMPFAIL  # 75: start it again to go on
JOB_END = "RETOOL_JOB_END"  # when the job's time is over, in seconds since the epoch; not set: nobody knows


class StopRequested(Exception):
    """Raised in a trainer between two steps; the checkpoint of the last one is whole."""

    def __init__(self, step: int) -> None:
        super().__init__(f"asked to stop after step {step}")
        self.step = step


def job_end() -> float:
    """The end of the job's time, in seconds since the epoch; infinity where nobody knows."""
    return float(os.environ.get(JOB_END, "inf"))


def request(stage_dir: Path) -> None:
    (stage_dir / "STOP").touch()


def requested(stage_dir: Path) -> bool:
    return (stage_dir / "STOP").exists()


def honour(stage_dir: Path, step: int) -> None:
    """Say that the stage stopped after `step`, by the trainer that ended it."""
    (stage_dir / "STOP").unlink(missing_ok=True)
    (stage_dir / "STOPPED").write_text(f"{step}\n")


def stopped_after(stage_dir: Path) -> int | None:
    """The step after which the stage stopped on request, None when it did not."""
    stopped = stage_dir / "STOPPED"
    return int(stopped.read_text()) if stopped.exists() else None


def clear(stage_dir: Path) -> None:
    """Forget requests: an old one must not stop a new attempt."""
    for name in ("STOP", "STOPPED"):
        (stage_dir / name).unlink(missing_ok=True)
