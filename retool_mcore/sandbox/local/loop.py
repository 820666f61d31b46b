"""A small event loop on epoll. Not asyncio, whose modules alone would double the memory of the server."""

import heapq
import itertools
import select
import time
from collections.abc import Callable


class Timer:
    def __init__(self, action: Callable[[], None]):
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        self.action = None


class Loop:
    def __init__(self):
        self.epoll = select.epoll()
        self.running = True
        self._actions: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()

    def watch(self, fd: int, action: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """Call `action(events)` whenever `fd` is ready."""
        self._actions[fd] = action
        self.epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        self.epoll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Must come before the descriptor is closed. Does nothing for one that is not watched."""
        if self._actions.pop(fd, None) is not None:
            self.epoll.unregister(fd)

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        timer = Timer(action)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def run(self) -> None:
        while self.running:
            while self._timers and (self._timers[0][2].action is None or self._timers[0][0] <= time.monotonic()):
                timer = heapq.heappop(self._timers)[2]
                if timer.action is not None:
                    timer.action()
            left_s = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else -1
            for fd, events in self.epoll.poll(left_s):
                # An earlier action of this round may have closed it.
                action = self._actions.get(fd)
                if action is not None:
                    action(events)
