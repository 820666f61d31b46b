"""Three bounded stages that overlap over trajectories (SkyRL v0): prepare the environment, act, score.

A trajectory gives a stage up only when it has a place in the next one. So a slow stage holds up the one before it and
not the memory: at most `prepare` environments are made ahead of those that act, `act` ahead of those that are scored.
"""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from retool_mcore.errors import UserError
from retool_mcore.sandbox.concurrency import PerLoopSemaphore

STAGES = ("prepare", "act", "score")


class Stages:
    """`limits`: trajectories at once in each stage, in each event loop. Raises UserError for less than one."""

    def __init__(self, limits: Mapping[str, int]):
        if set(limits) != set(STAGES) or min(limits.values()) < 1:
            raise UserError(f"rollout.stages is {dict(limits)}: expected 1 or more for each of {', '.join(STAGES)}.")
        self.limits = {name: PerLoopSemaphore(limits[name]) for name in STAGES}

    def passage(self) -> "Passage":
        """The way of one trajectory."""
        return Passage(self)


class Passage(AbstractAsyncContextManager):
    """`async with stages.passage() as passage:` then `await passage.enter(stage)` for each, in the order of STAGES.

    `spans` has, for each stage that was entered, when it was asked for, entered and left, in seconds since 1970.
    """

    def __init__(self, stages: Stages):
        self.stages = stages
        self.spans: list[dict] = []
        self._held: asyncio.Semaphore | None = None

    async def __aexit__(self, *exc) -> None:
        self._leave()

    async def enter(self, stage: str) -> None:
        """Wait for a place in `stage`, then give up the place before."""
        if stage != STAGES[len(self.spans)]:
            raise ValueError(f"{stage} does not follow {len(self.spans)} stages of {STAGES}")
        asked = time.time()
        slot = self.stages.limits[stage].slot()
        await slot.acquire()
        self._leave()
        self._held = slot
        self.spans.append({"stage": stage, "asked": asked, "start": time.time(), "end": None})

    def _leave(self) -> None:
        if self._held is not None:
            self.spans[-1]["end"] = time.time()
            self._held.release()
            self._held = None
