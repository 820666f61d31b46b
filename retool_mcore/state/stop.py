"""How a running stage is asked to stop at a step: someone creates RUN/<stage>/STOP.

The trainer ends its step, saves a whole checkpoint and honours the request: STOP becomes STOPPED, which holds the last
step and who asked. Files, because the one who asks (Slurm's job script, a user on another node) shares nothing else
with the trainer. Only a stop for the time limit leads a Slurm job back to the queue.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retool_mcore.files import write_atomically
from retool_mcore.state import background

LOOK_S = 1.0
EXIT_CODE = os.EX_TEMPFAIL  # 75: start it again to go on
JOB_END = "RETOOL_JOB_END"  # file with the end of the job's time, in seconds since the epoch; not set: nobody knows
TIME_LIMIT = "time limit"
REQUEST = "request"  # a user's: `retool stop`, or an empty STOP made by hand


class StopRequested(Exception):
    """Raised in a trainer between two steps; the checkpoint of the last one is whole."""

    def __init__(self, step: int) -> None:
        super().__init__(f"asked to stop after step {step}")
        self.step = step


def job_end() -> float:
    """The end of the job's time, in seconds since the epoch; infinity where nobody knows.

    A limit can be extended or shortened while the job runs, so the file is read at each call.
    """
    path = os.environ.get(JOB_END)
    return float(Path(path).read_text()) if path else float("inf")


def write_job_end(path: Path, end: float) -> None:
    write_atomically(path, f"{end}\n")


def request(stage_dir: Path, why: str = TIME_LIMIT) -> None:
    """Ask the stage to stop. A request of the user's is not changed into one for the time limit."""
    if not requested(stage_dir) or why == REQUEST:
        (stage_dir / "STOP").write_text(f"{why}\n")


def requested(stage_dir: Path) -> bool:
    return (stage_dir / "STOP").exists()


@contextmanager
def watched(stage_dir: Path, asked: Callable[[], None]) -> Iterator[None]:
    """Call `asked` once, in a thread, as soon as the stage is asked to stop while the body runs."""

    def look() -> bool:
        if stopping := requested(stage_dir):
            asked()
        return stopping

    with background.looking(LOOK_S, look):
        yield


def withdraw(stage_dir: Path) -> None:
    """Take back a request for the time limit; a user's stays."""
    if requested(stage_dir) and reason(stage_dir) == TIME_LIMIT:
        (stage_dir / "STOP").unlink(missing_ok=True)


def honour(stage_dir: Path, step: int) -> None:
    """Record that the trainer stopped after `step`. Without a STOP it was the clock that asked (state/schedule.py)."""
    why = reason(stage_dir) if requested(stage_dir) else TIME_LIMIT
    (stage_dir / "STOP").unlink(missing_ok=True)
    (stage_dir / "STOPPED").write_text(f"{step}\n{why}\n")


def stopped_after(stage_dir: Path) -> int | None:
    """The step after which the stage stopped in good order, None when it did not."""
    lines = _lines(stage_dir / "STOPPED")
    return int(lines[0]) if lines else None


def stopped_for(stage_dir: Path) -> str:
    """TIME_LIMIT or REQUEST, of a stage that stopped."""
    return (*_lines(stage_dir / "STOPPED"), TIME_LIMIT)[1]


def clear(stage_dir: Path) -> None:
    """Forget requests: an old one must not stop a new attempt."""
    for name in ("STOP", "STOPPED"):
        (stage_dir / name).unlink(missing_ok=True)


def reason(stage_dir: Path) -> str:
    """TIME_LIMIT or REQUEST, of a stage that is asked to stop."""
    return TIME_LIMIT if TIME_LIMIT in _lines(stage_dir / "STOP") else REQUEST


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
