"""Writes trajectories beside the training step: compressing a batch takes seconds that no GPU has to wait for."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from retool_mcore.metrics.records import write_step


class TrajectoryWriter:
    """`records.write_step` in a thread of its own, steps in the order given.

    keep_bytes: see `write_step`. waiting: steps that may wait; a further `write` blocks, which bounds the memory.
    """

    def __init__(self, folder: Path, keep_bytes: int | None = None, waiting: int = 1) -> None:
        self.folder, self.keep_bytes = folder, keep_bytes
        self._steps: queue.Queue[tuple | None] = queue.Queue(maxsize=waiting)  # the arguments of `write`
        self._error: BaseException | None = None
        # A daemon, so that a trainer that dies without `close` does not wait for a step that never comes.
        self._thread = threading.Thread(target=self._run, name="trajectory writer", daemon=True)
        self._thread.start()

    def write(self, step: int, records: Sequence[Mapping], after: Callable[[], None] = lambda: None) -> None:
        """Hand over a step; the records must not be changed any more. Raises what an earlier write has met.

        after: called in the writer's thread once the step is on the disk.
        """
        self._raise()
        self._steps.put((step, records, after))

    def flush(self) -> None:
        """Wait until everything that was handed over is on the disk. Raises what a write has met."""
        self._steps.join()
        self._raise()

    def close(self) -> None:
        """Wait until everything is on the disk, at the end or after a crash. Raises what a write has met."""
        if self._thread.is_alive():
            self._steps.put(None)
            self._thread.join()
        self._raise()

    def _run(self) -> None:
        while (item := self._steps.get()) is not None:
            if self._error is None:  # after an error only emptied, so that nobody blocks on a full queue
                try:
                    step, records, after = item
                    write_step(self.folder, step, records, keep_bytes=self.keep_bytes)
                    after()
                except BaseException as error:
                    self._error = error
            self._steps.task_done()

    def _raise(self) -> None:
        if self._error is not None:
            raise RuntimeError(
                f"The trajectories could not be written to {self.folder}: {self._error}"
            ) from self._error
