"""Objects that belong to one event loop of one process, for owners that outlive loops and forks; and a fair waiting
room in front of a number of slots."""

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from retool_mcore.resources import processors

T = TypeVar("T")

MIN_PROGRAMS = 4  # programs mostly start up and wait: on a laptop four at once keep two cores busy


def default_workers() -> int:
    """Programs at once where nothing else runs."""
    return max(MIN_PROGRAMS, processors())


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


class QueueFull(Exception):
    """Error of a full queue: as many wait already as may; come back later."""


TURN_S = 0.02  # what a turn costs its key besides the time that it takes
WEIGHT = 4.0  # of that time: with 1, short programs in a queue full of long ones waited for most of it
REMEMBERED_KEYS = 4096


class FairQueue:
    """`async with queue.slot(key):` admits `slots` at once; freed slots go to the keys that wait, the least served
    first.

    A run has its turn as if it had been asked for later by WEIGHT times what its key's runs have taken before. So a key
    with a thousand waiting runs, or with runs that take long, delays another's next run by what it runs already and not
    by all that; and it is passed for no longer than so. Within a key first come, first served. At most
    `max_waiting` wait (None: any number); one more is QueueFull. Belongs to one event loop.
    """

    def __init__(self, slots: int, max_waiting: int | None = None):
        self.slots, self.max_waiting = slots, max_waiting
        self.running = self.waiting = 0
        self._lines: dict[Hashable, deque[tuple[float, asyncio.Future]]] = {}
        self._used_s: dict[Hashable, float] = {}

    @asynccontextmanager
    async def slot(self, key: Hashable) -> AsyncIterator[None]:
        await self.acquire(key)
        self._charge(key, TURN_S)
        started = time.monotonic()
        try:
            yield
        finally:
            self._charge(key, WEIGHT * (time.monotonic() - started))
            self.release()

    def _charge(self, key: Hashable, seconds: float) -> None:
        self._used_s[key] = self._used_s.pop(key, 0.0) + seconds
        if len(self._used_s) > REMEMBERED_KEYS:
            del self._used_s[next(iter(self._used_s))]

    async def acquire(self, key: Hashable) -> None:
        """Raises QueueFull at once, without waiting."""
        if self.running < self.slots:
            self.running += 1
            return
        if self.max_waiting is not None and self.waiting >= self.max_waiting:
            raise QueueFull(f"{self.waiting} runs wait already")
        turn = asyncio.get_running_loop().create_future()
        place = (time.monotonic(), turn)
        self._lines.setdefault(key, deque()).append(place)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(key, place)
            else:
                self.release()  # The slot had come in the moment of the cancellation.
            raise

    def release(self) -> None:
        """Hand the caller's slot to the first of the key whose turn it is, if any waits."""
        while self._lines:
            key = min(self._lines, key=lambda key: self._lines[key][0][0] + self._used_s.get(key, 0.0))
            _, turn = self._lines[key][0]
            self._leave(key, self._lines[key][0])
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _leave(self, key: Hashable, place: tuple[float, asyncio.Future]) -> None:
        line = self._lines.get(key)
        if line and place in line:
            line.remove(place)
            self.waiting -= 1
            if not line:
                del self._lines[key]
