"""How many trajectories of a rollout worker are at work at once: as many as the engines' KV caches hold.

Between two turns a trajectory is not in the engine, and what waits there takes its place in the cache: of 2,048
trajectories in a cache of 454,000 tokens, 99 % of what a turn sends again is computed again, 5 % where only as many are
begun as fit (benchmarks/rollout/live.py). Going by age (vLLM's priorities) hardly helps: 96 %.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

SHARE_OF_LONGEST = 1 / 3  # what a trajectory is taken to have of its limit of tokens before some have ended


class Live:
    """Admits trajectories, in the order in which they come.

    Args:
        tokens: of the KV caches, this worker's share; None: all are admitted.
        longest: tokens of the longest prompt and response together.
        window: over how many ended trajectories their mean length is taken. In the beginning it is filled with
            `SHARE_OF_LONGEST`: the first that end are the short ones.
        most: at once, whatever the caches hold; None: as they hold.
    """

    def __init__(self, tokens: int | None, longest: int, window: int, most: int | None = None):
        self.tokens, self.most = tokens, most
        self.lengths = deque([longest * SHARE_OF_LONGEST] * max(1, window), max(1, window))
        self.total = sum(self.lengths)
        self.count = 0
        self.waiting: deque[asyncio.Future] = deque()

    @property
    def bound(self) -> int | None:
        """Trajectories that may be at work, 1 or more; None: any number."""
        if self.most is not None:
            return max(1, self.most)
        return None if self.tokens is None else max(1, int(self.tokens * len(self.lengths) / self.total))

    @asynccontextmanager
    async def trajectory(self) -> AsyncIterator[None]:
        """Waits for its turn, and is at work as long as the body runs."""
        turn = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self._admit()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self.count -= 1
            self._admit()

    def ended(self, tokens: int) -> None:
        """A trajectory has ended with so many tokens, prompt included."""
        self.total += tokens - self.lengths[0]
        self.lengths.append(tokens)

    def _admit(self) -> None:
        while self.waiting and (self.bound is None or self.count < self.bound):
            turn = self.waiting.popleft()
            if not turn.done():  # it was given up
                self.count += 1
                turn.set_result(None)


def cache_tokens(server) -> int:
    """Tokens that the KV cache of an engine holds; called in verl's server process, with its server."""
    cache = server.engine.vllm_config.cache_config
    return cache.num_gpu_blocks * cache.block_size
