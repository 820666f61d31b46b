"""The Ray actors that roll out and score. What an episode is, and which engine writes it, is the caller's."""

import asyncio
import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ray.exceptions import RayActorError

from retool_mcore.errors import UserError
from retool_mcore.rollout.failures import GroupFailed, ScoringError, cause_of
from retool_mcore.rollout.live import Live
from retool_mcore.rollout.samples import Sample
from retool_mcore.rollout.unfinished import Unfinished
from retool_mcore.sandbox.base import Status

_ROW = ("data_source", "raw_prompt", "reward_model", "extra_info")
_FOLDERS = 8  # kept open; one a step, and no more steps are in flight


class Runner(Protocol):
    """Runs one episode and has it scored (backends/verl/episodes.py)."""

    async def run(
        self, client, uid: str, number: int, row: dict, step: int, sampling: dict
    ) -> tuple[Sample, dict[str, Any]]: ...

    async def scored(self, judge, row: dict, sample: Sample, facts: dict) -> dict: ...


class RolloutWorker:
    """Runs groups of episodes, begins no more at once than the engines' caches hold, and keeps what it finishes.

    A group is one call: whoever asks for the groups of a dead worker again gets the same episodes.

    Args:
        episodes: makes this process's runner.
        judges: handles of `JudgeActor`.
        live: arguments of `Live` (rollout/live.py) but `tokens`.
    """

    def __init__(self, episodes: Callable[[], Runner], judges: list, live: Mapping[str, Any]):
        self.episodes, self.live_options = episodes(), live
        self.judges = itertools.cycle(judges)
        self.client: Any = None
        self.live: Live | None = None
        self.scored = False  # whether a trajectory has been
        self.opened: dict[str, asyncio.Future] = {}  # folders of unfinished trajectories
        print("a rollout worker is there", flush=True)  # Ray's log names its process by this line (runner/stage_log.py)

    async def connect(self, client, cache_tokens: int | None) -> None:
        """Episodes are written by `client`'s engines; cache_tokens: this worker's share of their caches."""
        self.client, self.live = client, Live(cache_tokens, **self.live_options)

    async def group(self, uid: str, row: dict, step: int, *, n: int, sampling: dict, keep: str | None) -> list[Sample]:
        """The group's `n` samples, scored. Raises GroupFailed where an episode raised, once all have ended; UserError
        and the death of another actor as they are.

        step: seeds the requests; keep: the folder in which finished trajectories are kept and found, None for none.
        """
        tasks = [self._sample(uid, number, row, step, dict(sampling), keep) for number in range(n)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        errors = {number: one for number, one in enumerate(ended) if isinstance(one, BaseException)}
        for error in errors.values():
            if isinstance(error, (UserError, RayActorError)):
                raise error
        if errors:
            failures = [(number, cause_of(error)) for number, error in errors.items()]
            raise GroupFailed(failures, n) from next(iter(errors.values()))
        return [one for one in ended if not isinstance(one, BaseException)]

    async def _sample(self, uid: str, number: int, row: dict, step: int, sampling: dict, keep: str | None) -> Sample:
        key = f"{uid}/{number}/{_digest(row)}"
        unfinished = await self._open(keep) if keep is not None else None
        if unfinished and (kept := await asyncio.to_thread(unfinished.take, key)) is not None:
            return Sample.of_kept(uid, number, kept)
        assert self.live is not None, "the worker is asked before it is connected"
        async with self.live.trajectory():
            sample, facts = await self.episodes.run(self.client, uid, number, row, step, sampling)
            self.live.ended(sum(one.length for one in sample.trajectories))
        clock = time.perf_counter()
        sample.outcome = await self.episodes.scored(next(self.judges), row, sample, facts)
        sample.score_s = time.perf_counter() - clock
        error = sample.outcome.get("error", "")
        if error and not self.scored:
            raise ScoringError(error)
        self.scored = True
        # What the sandbox spoilt is generated again, and scored again, what scoring raised for. So is a sample with
        # experts, which are larger than all the rest.
        if unfinished and sample.finish != Status.SANDBOX and not error and sample.experts is None:
            await asyncio.to_thread(unfinished.append, key, sample.kept())
        return sample

    async def _open(self, folder: str) -> Unfinished:
        if folder not in self.opened:
            self.opened[folder] = asyncio.ensure_future(asyncio.to_thread(Unfinished, Path(folder)))
            for old in list(self.opened)[:-_FOLDERS]:
                del self.opened[old]
        return await self.opened[folder]


class JudgeActor:
    """Scores trajectories in a process of its own: grading takes no core from an event loop of episodes.

    make: makes this process's scorer, which has `score(row, response_ids, facts)`.
    """

    def __init__(self, make: Callable[[], Any]):
        self.scorer = make()
        print("a judge is there", flush=True)  # as above

    async def score(self, row: dict, response_ids, facts: dict) -> dict:
        return await asyncio.to_thread(self.scorer.score, row, response_ids, facts)


def _digest(row: Mapping) -> str:
    """Names the problem with all that it consists of, so that nothing is taken over of another that has its place."""
    content = json.dumps([row.get(name) for name in _ROW], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
