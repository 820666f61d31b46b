"""When a checkpoint counts: once its files, and what its step's record is made of, are on the disk.

A run that is killed in between makes the step again, from trajectories that it has, instead of going on behind a step
that nobody has a record of.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from retool_mcore.rollout import unfinished
from retool_mcore.state import checkpoints


class Saves:
    """The checkpoints of one attempt.

    rotation: arguments of `checkpoints.rotate`; flush: waits until the trajectories that were recorded are on the disk.
    """

    def __init__(self, stage_dir: Path, rotation: Mapping[str, Any], flush: Callable[[], None]):
        self.stage_dir, self.rotation, self.flush = stage_dir, rotation, flush
        self.written: tuple[Path, float, float, int] | None = None
        self.marking: Future[dict[str, float]] | None = None
        self.covered = 0
        self.unreported: dict[str, float] = {}  # metrics of what has become whole

    def write(self, step: int, oldest: int, write: Callable[[Path], None]) -> float:
        """Have `write` fill the folder of the step's checkpoint; returns the seconds that it took.

        oldest: the earliest step with something requested and not taken.
        """
        started = time.monotonic()
        self.finish(blocking=True)
        checkpoint = checkpoints.folder_of(self.stage_dir / "checkpoints", step)
        checkpoint.mkdir(parents=True, exist_ok=True)
        write(checkpoint)
        self.written = checkpoint, started, time.monotonic(), min(step, oldest - 1)
        return time.monotonic() - started

    def recorded(self) -> None:
        """The step is recorded: its checkpoint is to count as soon as everything has reached the disk."""
        if self.written is None:
            return
        (checkpoint, started, written, self.covered), self.written = self.written, None

        def mark() -> dict[str, float]:
            self.flush()
            return checkpoints.declare_whole(checkpoint, started, written)

        thread = ThreadPoolExecutor(1)
        self.marking = thread.submit(mark)
        thread.shutdown(wait=False)

    def report(self) -> dict[str, float]:
        """Return the metrics of the checkpoints that have become whole since the last call."""
        self.finish(blocking=False)
        metrics, self.unreported = self.unreported, {}
        return metrics

    def finish(self, blocking: bool) -> None:
        """Remove what a checkpoint that counts has made superfluous.

        blocking: wait for the one in the making. Raises OSError where the disk has no room for it.
        """
        if self.marking is None or not (blocking or self.marking.done()):
            return
        marking, self.marking = self.marking, None
        self.unreported |= marking.result()
        checkpoints.rotate(self.stage_dir, **self.rotation)
        unfinished.remove_through(self.stage_dir, self.covered)
