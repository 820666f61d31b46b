"""A bounded waiting room in front of a number of slots, fair between keys."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class QueueFull(Exception):
    """As many wait already as may; come back later."""


class FairQueue:
    """`async with queue.slot(key):` admits `slots` at once; freed slots go round robin over the keys that wait.

    So a key with a thousand waiting runs delays another key's next run by one run, not by a thousand. Within a key
    first come, first served. At most `max_waiting` wait (None: any number); one more is QueueFull. Belongs to one event
    loop.
    """

    def __init__(self, slots: int, max_waiting: int | None = None):
        self.slots = slots
        self.max_waiting = max_waiting
        self.running = 0
        self.waiting = 0
        self._lines: OrderedDict[Hashable, deque[asyncio.Future]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, key: Hashable) -> AsyncIterator[None]:
        await self.acquire(key)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, key: Hashable) -> None:
        """Raises QueueFull at once, without waiting."""
        if self.running < self.slots:
            self.running += 1
            return
        if self.max_waiting is not None and self.waiting >= self.max_waiting:
            raise QueueFull(f"{self.waiting} runs wait already")
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append(turn)
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(key, turn)
            else:
                self.release()  # The slot had come in the moment of the cancellation.
            raise

    def release(self) -> None:
        """Hand the caller's slot to the next key's first, if any waits."""
        while self._lines:
            key, line = self._lines.popitem(last=False)
            turn = line.popleft()
            self.waiting -= 1
            if line:
                self._lines[key] = line
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1

    def _leave(self, key: Hashable, turn: asyncio.Future) -> None:
        line = self._lines.get(key)
        if line and turn in line:
            line.remove(turn)
            self.waiting -= 1
            if not line:
                del self._lines[key]
