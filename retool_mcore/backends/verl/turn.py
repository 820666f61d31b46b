"""One policy turn from verl's client; where a push of new weights interrupts it, the rest is drawn with new noise.

verl has a client that resumes an interrupted turn on its own, with the same sampling parameters: the engine then seeds
its generator again, and the noise that chose the first tokens chooses the next ones as well. So each part of a turn is
a request of its own here, by verl's plain client.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from verl.workers.rollout.replica import TokenOutput

ABORTED = ("aborted", "abort")
PAUSE_S = 1.0  # as verl's: a replica that leaves the rotation answers at once


async def sample_turn(
    client,
    *,
    request_id: str,
    prompt_ids: list[int],
    params: Callable[[int], dict[str, Any]],
    decode: Callable[[list[int]], str],
    resumes: bool,
    priority: int,
) -> tuple[TokenOutput, list[tuple[int, int]]]:
    """(the whole turn after `prompt_ids`, [(version of the weights, tokens that they wrote), ...]).

    client: verl's LLMServerClient. params(done): what the part after `done` tokens is sampled with, `max_tokens`,
    `seed` and `stop` among it. resumes: go on where the engine was interrupted; else such a turn is returned as it is.
    priority: the engine works at requests of a lower number first.
    """
    whole: TokenOutput | None = None
    versions: list[tuple[int, int]] = []
    while True:
        ids = [] if whole is None else whole.token_ids
        wanted = params(len(ids))
        limit, stops = wanted["max_tokens"], wanted["stop"]
        output = await client.generate(
            request_id, prompt_ids=prompt_ids + ids, sampling_params=wanted, priority=priority
        )
        got = len(output.token_ids)
        if ids and (end := _straddled(decode, ids, list(output.token_ids), stops)):
            output.stop_reason, got = "completed", end
        version = output.extra_fields.get("global_steps")
        if got and version is not None:
            versions.append((version, got))
        whole = output if whole is None else _joined(whole, output, got)
        if output.stop_reason not in ABORTED or not resumes:
            return whole, versions
        if got >= limit:
            whole.stop_reason = "length"
            return whole, versions
        await asyncio.sleep(PAUSE_S)


def _straddled(decode: Callable[[list[int]], str], ids: list[int], new: list[int], stops: list[str]) -> int:
    """How many of the `new` tokens complete a stop string that begins in `ids`, 0 if none does.

    The engine looks for stop strings in what one request sampled.
    """
    longest = max(map(len, stops), default=0)
    tail = ids[-longest:]
    texts = (decode(tail + new[:count]) for count in range(1, min(longest, len(new)) + 1))
    return next((count for count, text in enumerate(texts, 1) if any(stop in text for stop in stops)), 0)


def _joined(first: TokenOutput, then: TokenOutput, got: int) -> TokenOutput:
    """`first` and the first `got` tokens of `then`, which follow it."""
    experts = [] if first.routed_experts is None else [first.routed_experts]
    if then.routed_experts is not None and got:
        # It has the experts of all tokens before as well, by other weights than those that wrote them.
        own = then.routed_experts[-len(then.token_ids) :][:got] if experts else then.routed_experts
        experts.append(own)
    logprobs = [] if first.log_probs is None else list(first.log_probs)
    known = {name: value for name, value in first.extra_fields.items() if value is not None}
    newest = {name: then.extra_fields.get(name) for name in ("global_steps", "max_global_steps")}
    return TokenOutput(
        token_ids=list(first.token_ids) + list(then.token_ids)[:got],
        log_probs=logprobs + list(then.log_probs or [])[:got] or None,
        routed_experts=np.concatenate(experts) if experts else None,
        stop_reason=then.stop_reason,
        # What is counted once a turn, such as the cached tokens of its prompt, is the first attempt's, as with verl.
        extra_fields=then.extra_fields | known | newest,
    )
