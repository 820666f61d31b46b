"""Writes trajectories during the training step: compressing a batch takes seconds that no GPU has to wait for."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from retool_mcore.metrics.records import write_step


class TrajectoryWriter:
    """`records.write_step` in a thread of its own, steps in the order given.

    keep_bytes: see `write_step`. waiting: steps that may wait; a further `write` blocks, which bounds the memory.
    """

    def __init__(self, folder: Path, keep_bytes: int | None = None, waiting: int = 1) -> None:
        self.folder, self.keep_bytes, self.waiting = folder, keep_bytes, waiting
        self._thread = ThreadPoolExecutor(1, "trajectory writer")
        self._steps: deque[Future] = deque()

    def write(self, step: int, records: Sequence[Mapping], after: Callable[[], None] = lambda: None) -> None:
        """Hand over a step; the records must not be changed any more. Raises what an earlier write has met.

        after: called in the writer's thread once the step is on the disk.
        """
        while self._steps and (self._steps[0].done() or len(self._steps) > self.waiting):
            self._finish_first()
        self._steps.append(self._thread.submit(self._write, step, records, after))

    def flush(self) -> None:
        """Wait until everything that was handed over is on the disk. Raises what a write has met."""
        while self._steps:
            self._finish_first()

    def close(self) -> None:
        """Wait until everything is on the disk, at the end or after a crash. Raises what a write has met."""
        try:
            self.flush()
        finally:
            self._thread.shutdown()

    def _write(self, step: int, records: Sequence[Mapping], after: Callable[[], None]) -> None:
        write_step(self.folder, step, records, keep_bytes=self.keep_bytes)
        after()

    def _finish_first(self) -> None:
        try:
            self._steps[0].result()
        except BaseException as error:  # it stays the first: nothing more is written
            raise RuntimeError(f"The trajectories could not be written to {self.folder}: {error}") from error
        self._steps.popleft()
