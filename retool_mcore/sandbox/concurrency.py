"""What belongs to one event loop of one process, for objects that outlive loops and forks."""

import asyncio
import os
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MIN_PROGRAMS = 4  # programs mostly start up and wait: on a laptop four at once keep two cores busy


def default_workers() -> int:
    """Programs at once where nothing else runs."""
    return max(MIN_PROGRAMS, len(os.sched_getaffinity(0)))


class PerLoop(Generic[T]):
    """`get()` is the running loop's own `make()`; that of a loop that is closed goes, after a last `drop(thing)`.

    A fork starts with none: what its parent made holds the parent's sockets and waits for the parent's loop.
    """

    def __init__(self, make: Callable[[], T], drop: Callable[[T], None] = lambda _: None):
        self._make, self._drop = make, drop
        self._of_loop: dict[asyncio.AbstractEventLoop, T] = {}
        self._owner = os.getpid()

    def get(self) -> T:
        self._leave_parent()
        loop = asyncio.get_running_loop()
        if loop not in self._of_loop:
            for closed in [known for known in list(self._of_loop) if known.is_closed()]:
                self._drop(self._of_loop.pop(closed))
            self._of_loop[loop] = self._make()
        return self._of_loop[loop]

    def all(self) -> list[T]:
        self._leave_parent()
        return list(self._of_loop.values())

    def _leave_parent(self) -> None:
        if self._owner != os.getpid():
            # Kept, not freed: freeing the parent's connections here would write into sockets that both hold.
            self._of_parent, self._of_loop, self._owner = self._of_loop, {}, os.getpid()


class PerLoopSemaphore:
    """`async with limit.slot():` admits `size` tasks at once in each loop; an asyncio.Semaphore belongs to one loop."""

    def __init__(self, size: int):
        self._semaphores = PerLoop(lambda: asyncio.Semaphore(size))

    def slot(self) -> asyncio.Semaphore:
        return self._semaphores.get()
