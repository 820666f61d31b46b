"""Where a rollout worker or an evaluation beats (heartbeat.py): at every sampled turn, and as a trajectory ends."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from retool_mcore.state import heartbeat


class Turns:
    """The turns of this process, and its trajectories of the newest step; its speed since it last had none."""

    def __init__(self) -> None:
        self.writer = f"agent-{os.uname().nodename}-{os.getpid()}"
        self.step: object = None
        self.turns = self.live = self.finished = 0
        self.tokens, self.seconds = 0, 0.0  # of all turns
        self.busy_since, self.tokens_before = 0.0, 0

    def begin(self, step: object) -> None:
        if step != self.step:
            self.step, self.finished = step, 0
        if not self.live:
            self.busy_since, self.tokens_before = time.time(), self.tokens
        self.live += 1

    def turn(self, tokens: int, seconds: float, max_tokens: int) -> None:
        """A turn was sampled in that time; the longest may have `max_tokens`, silent for as long as they take."""
        self.turns, self.tokens, self.seconds = self.turns + 1, self.tokens + tokens, self.seconds + seconds
        speed = (self.tokens - self.tokens_before) / max(time.time() - self.busy_since, 1.0)
        self._beat(tokens_per_s=speed, patience_s=max_tokens * self.seconds / max(self.tokens, 1))

    def end(self) -> None:
        self.live, self.finished = self.live - 1, self.finished + 1
        self._beat()

    @contextmanager
    def trajectory(self, step: object = None) -> Iterator[None]:
        """Count the body as one trajectory of `step`."""
        self.begin(step)
        try:
            yield
        finally:
            self.end()

    def timed(self, generate: Callable, max_tokens: int) -> Callable:
        """Return an episode's `generate` whose turns are counted; each may have `max_tokens`."""

        async def counting(*args):
            clock = time.monotonic()
            turn = await generate(*args)
            self.turn(len(turn.ids), time.monotonic() - clock, max_tokens)
            return turn

        return counting

    def _beat(self, **facts: float) -> None:
        heartbeat.beat(self.writer, heartbeat.GENERATION, self.turns, live=self.live, finished=self.finished, **facts)


TURNS = Turns()
