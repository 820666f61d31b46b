"""Episodes in which an agent program talks to the policy through an endpoint (gateway/), one process an episode."""

import asyncio
import functools
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from retool_mcore.backends.verl.episodes import Episodes, Sampler, sample_of
from retool_mcore.gateway.agent import (
    FAILED,
    AgentEnd,
    AgentLimits,
    Result,
    ResultError,
    environment,
    read_result,
    run_agent,
    write_row,
)
from retool_mcore.gateway.endpoint import Endpoint, EpisodeLimits, Opened
from retool_mcore.gateway.segments import Segments, segments
from retool_mcore.gateway.tree import Session
from retool_mcore.rollout.episode import Generation
from retool_mcore.rollout.samples import Sample
from retool_mcore.rollout.seeds import request_seed
from retool_mcore.rollout.trajectory import Trajectory
from retool_mcore.rollout.wire import to_wire
from retool_mcore.sandbox.local.remove import remove_tree

AGENT_ERROR, AGENT_TIMEOUT = "agent_error", "agent_timeout"  # words of `Trajectory.finish`
ATTEMPTS = 3  # of an episode that failed without the policy's fault


@dataclass
class Attempt:
    """One run of the agent: `failed` says why it counts as nothing, "" where it counts; `finish` why it ended, None:
    as its last turn did."""

    opened: Opened
    end: AgentEnd
    result: Result
    found: Segments
    failed: str
    finish: str | None


class AgentEpisodes(Episodes):
    """Runs the agent `environment.agent` for every episode. Arguments and errors are those of `Episodes`."""

    def __init__(self, config, tokenizer=None):
        super().__init__(config, tokenizer)
        self.agent: Mapping[str, Any] = self.settings["endpoint"]
        names = {field.name for field in fields(AgentLimits)}
        self.agent_limits = AgentLimits(**{name: self.agent[name] for name in names})
        self.episode_limits = EpisodeLimits(
            self.agent["turns"], self.agent["segments"], self.agent["tokens"] or EpisodeLimits.tokens
        )
        self.context = self.prompt_length + self.limits.max_response_tokens

    @functools.cached_property
    def endpoint(self) -> Endpoint:
        """The server of this process."""
        return Endpoint()

    async def scored(self, judge, row: dict, sample: Sample, facts: dict) -> dict:
        """The outcome of an episode: the agent's own reward, or the recipe's of its answer."""
        result: Result = facts.pop("result")
        if result.reward is not None:
            right_from = self.agent["right_from"]
            right = result.reward >= (1.0 if right_from is None else right_from)
            return {
                "score": result.reward, "acc": float(right), "pred": result.answer or "", "overlong": 0.0, "drop": "",
                "graded_by": "agent", "error": "",
            }  # fmt: skip
        outcome = await super().scored(judge, row, sample, facts)
        if sample.finish == AGENT_ERROR:  # graded without an answer: crashing its agent must not pay for a policy
            outcome |= {"score": min(outcome["score"], 0.0), "acc": 0.0}
        return outcome

    async def _episode(
        self, client, uid: str, number: int, row: dict, step: int, sampling: dict
    ) -> tuple[Sample, dict[str, Any]]:
        for count in range(ATTEMPTS):
            name = f"{uid}-{number}" + (f"-again{count}" if count else "")
            attempt = await self._attempt(client, name, number, row, step, sampling)
            if not attempt.failed or attempt.opened.failure is not None:
                break
            print(f"agent of episode {name}: {attempt.failed} ({attempt.end})", flush=True)
        if attempt.opened.failure is not None:
            raise attempt.opened.failure
        if not attempt.found.trajectories or (attempt.failed and self.agent["on_error"] == "fail"):
            raise RuntimeError(
                f"The agent of {ATTEMPTS} attempts failed: {attempt.failed or 'no reply'} ({attempt.end})"
            )
        return self._sample(uid, number, step, attempt, count)

    async def _attempt(
        self, client, name: str, number: int, row: dict, step: int, sampling: dict
    ) -> Attempt:  # fmt: skip
        sampler = Sampler(self, client, row, step, number, sampling)

        async def generate(ids: list[int], max_tokens: int, **place: Any) -> Generation:
            return (await sampler.sample(ids, max_tokens, **place))[1]

        session = Session(self.format, self.tokenizer, self.limits, self.context)
        opened = Opened(name, session, generate, self.episode_limits)
        folder = Path(tempfile.mkdtemp(prefix="retool-agent-"))
        try:
            write_row(folder / "row.json", row)
            async with self.endpoint.episode(opened) as base_url:
                env = environment(
                    folder, base_url=base_url, key=opened.key,
                    seed=request_seed(*sampler.place, 0, draw=sampler.draw), extra=self.agent["env"],
                )  # fmt: skip
                end = await run_agent(self.agent["agent"], folder, env, self.agent_limits)
            try:
                result, unreadable = read_result(folder / "result.json"), ""
            except ResultError as error:
                result, unreadable = Result(), str(error)
        finally:
            await asyncio.to_thread(remove_tree, str(folder))
        failed, finish = self._judged(opened, end, result, unreadable)
        if self.agent["reward"] == "recipe":
            result = Result(answer=result.answer)
        return Attempt(opened, end, result, segments(session, finish), failed, finish)

    def _judged(self, opened: Opened, end: AgentEnd, result: Result, unreadable: str) -> tuple[str, str | None]:
        """(why the attempt counts as nothing, why the episode ended)."""
        if opened.failure is not None:
            return "the engine failed", AGENT_ERROR
        if not opened.session.delivered:
            return "it had no reply of the policy", AGENT_ERROR
        if opened.finish:
            return "", opened.finish
        if end.how == "timeout":
            return "", AGENT_TIMEOUT
        if end.how == "limit":
            return "", AGENT_ERROR
        if end.how == "no_start" or end.code == FAILED or (end.code or 0) < 0:
            return str(end), AGENT_ERROR
        if end.code:
            return (str(end) if self.agent["on_error"] == "fail" else ""), AGENT_ERROR
        if unreadable:
            return unreadable, AGENT_ERROR
        if self.agent["reward"] == "agent" and result.reward is None:
            return "it wrote no reward to RETOOL_RESULT", AGENT_ERROR
        return "", None

    def _sample(self, uid: str, number: int, step: int, attempt: Attempt, again: int) -> tuple[Sample, dict[str, Any]]:
        made = attempt.found.trajectories
        packed = [to_wire(one.to_record()) for one in made]
        samples = [sample_of(uid, number, one, text, _versions(one)) for one, text in zip(made, packed, strict=True)]
        for place, sample in enumerate(samples):
            sample.notes |= {"segment": place, "segments": len(samples)}
        main = samples[0]
        main.segments = samples[1:]
        main.notes["gateway"] = _figures(attempt, again)
        facts = self.facts(made[0], packed[0], step)
        result = attempt.result
        if main.finish == AGENT_ERROR:
            facts["policy_text"], result = "", Result()
        elif result.answer is not None:
            facts["policy_text"] = result.answer
        return main, facts | {"result": result}


def _versions(made: Trajectory) -> tuple[int, int]:
    written = [part.version for part in made.versions]
    return min(written, default=0), max(written, default=0)


def _figures(attempt: Attempt, again: int) -> dict[str, Any]:
    """What is recorded of an episode: counts of requests, and how its agent ended."""
    opened, found = attempt.opened, attempt.found
    counts: dict[str, Counter[str]] = {
        "opened": found.reasons, "refused": opened.refused, "unknown": opened.unknown, "overridden": opened.overridden
    }  # fmt: skip
    return {
        "requests": opened.requests, "retries": opened.retries, "replies": opened.session.delivered,
        "lost": found.lost, "attempts": again + 1, "end": str(attempt.end),
    } | {name: dict(count) for name, count in counts.items() if count}  # fmt: skip
