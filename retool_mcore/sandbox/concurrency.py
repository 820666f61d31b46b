"""A bound on runs at once for objects that outlive an event loop."""

import asyncio
import weakref


class PerLoopSemaphore:
    """`async with limit.slot():` admits `size` tasks at once in each loop; an asyncio.Semaphore belongs to one loop."""

    def __init__(self, size: int):
        self.size = size
        self._of_loop: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def slot(self) -> asyncio.Semaphore:
        return self._of_loop.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self.size))
