"""A bounded waiting room in front of a number of slots, fair between keys; and runs by request id: a repeated request
joins the run that its first one started, or gets its reply again."""

import asyncio
import sys
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager, suppress

from cachetools import LRUCache


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


REMEMBERED_BYTES = 64 * 2**20
# A client whose connection broke asks again within a second or two; a program that nobody waits for is stopped.
ORPHAN_S = 10.0


class Runs:
    """`active` counts the runs that have not ended. Belongs to one event loop."""

    def __init__(self, remembered_bytes: int = REMEMBERED_BYTES, orphan_s: float = ORPHAN_S):
        self.active = 0
        self.joined = 0
        self._orphan_s = orphan_s
        self._running: dict[str, asyncio.Task] = {}
        self._waiters: dict[asyncio.Task, int] = {}
        self._replies = LRUCache(remembered_bytes, getsizeof=sys.getsizeof)

    def knows(self, request_id: str | None) -> bool:
        return request_id in self._running or request_id in self._replies

    async def reply(self, request_id: str | None, make: Callable[[], Awaitable[tuple[str, bool]]]) -> str:
        """What `make()` gives, started once for an id: (reply, whether a repeated request may have it again).

        Raises what `make` raises; such a run is not remembered, so that a repeated request starts another. When the
        last caller is cancelled the run is too, at once or, with an id, when nobody has joined it for `orphan_s`.
        """
        if request_id in self._replies:
            self.joined += 1
            return self._replies[request_id]
        task = self._running.get(request_id)
        if task is None:
            task = asyncio.create_task(self._run(request_id, make))
            self._waiters[task] = 0
            task.add_done_callback(self._waiters.pop)
            if request_id is not None:
                self._running[request_id] = task
        else:
            self.joined += 1
        self._waiters[task] += 1
        try:
            return await asyncio.shield(task)
        finally:
            if task in self._waiters:
                self._waiters[task] -= 1
                delay_s = 0.0 if request_id is None else self._orphan_s
                asyncio.get_running_loop().call_later(delay_s, self._end_orphan, task)

    async def _run(self, request_id: str | None, make: Callable[[], Awaitable[tuple[str, bool]]]) -> str:
        self.active += 1
        try:
            reply, may_repeat = await make()
            if request_id is not None and may_repeat:
                with suppress(ValueError):  # of one that is larger than all that is remembered
                    self._replies[request_id] = reply
            return reply
        finally:
            self.active -= 1
            self._running.pop(request_id, None)

    def _end_orphan(self, task: asyncio.Task) -> None:
        if self._waiters.get(task) == 0:
            task.cancel()
