"""Runs by request id: a repeated request joins the run that its first one started, or gets its reply again."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from cachetools import LRUCache

REMEMBERED_BYTES = 64 * 2**20
# A client whose connection broke asks again within a second or two; a program that nobody waits for is stopped.
ORPHAN_S = 10.0


class Runs:
    """`active` counts the runs that have not ended. Belongs to one event loop."""

    def __init__(self, remembered_bytes: int = REMEMBERED_BYTES, orphan_s: float = ORPHAN_S):
        self.active = self.joined = 0
        self._orphan_s = orphan_s
        self._running: dict[str, asyncio.Task] = {}
        self._waiters: dict[asyncio.Task, int] = {}
        self._replies = LRUCache(remembered_bytes, getsizeof=sys.getsizeof)

    def knows(self, request_id: str | None) -> bool:
        return request_id in self._running or request_id in self._replies

    async def reply(self, request_id: str | None, make: Callable[[], Awaitable[tuple[str, bool]]]) -> str:
        """Return the result of `make()`, started once for an id: (reply, whether a repeated request may have it again).

        Raises what `make` raises; such a run is not remembered, and a repeated request starts another. When the last
        caller is cancelled the run is cancelled too: at once or, with an id, when nobody has joined it for `orphan_s`.
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
