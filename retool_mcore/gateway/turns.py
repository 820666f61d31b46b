"""One request of an agent: sample a turn, answer malformed calls as an episode of our own does, commit the reply."""

import time
from collections.abc import Sequence
from typing import Protocol

from retool_mcore.data.formats import Format, ToolCall
from retool_mcore.gateway.parsed import reply_of
from retool_mcore.gateway.tree import Node, Piece, Prompt, Session
from retool_mcore.rollout.episode import NO_CALLS_LEFT, Generation, whole_turn


class Generate(Protocol):
    """Samples one turn after `ids`, which also ends at one of the texts `stop`. number: of the engine's request on its
    path, from 0; branch: "" on a path without siblings. The two seed it."""

    async def __call__(
        self, ids: list[int], max_tokens: int, *, number: int, branch: str, stop: Sequence[str]
    ) -> Generation: ...


async def take_turn(
    session: Session, prompt: Prompt, generate: Generate, max_tokens: int | None = None, stop: Sequence[str] = ()
) -> Node:
    """Return the node of what the policy samples after `prompt`.

    max_tokens, stop: the client's limits of this reply. Raises RuntimeError where the engine returns what it may not;
    then nothing is committed, and the same request would draw the same tokens.
    """
    try:
        pieces, finish, cut = await _sampled(session, prompt, generate, max_tokens, stop)
    except BaseException:
        session.abandon(prompt)
        raise
    last = pieces[-1]
    calls = last.calls if finish in ("", "max_turns") else []
    opened = session.fmt.prefill(prompt.ids) if len(pieces) == 1 else ""
    reply = reply_of(session.fmt, last.turn.ids, calls, opened=opened, cut=cut, stop=stop)
    return session.commit(prompt, pieces, reply, finish)


async def _sampled(
    session: Session, prompt: Prompt, generate: Generate, client_limit: int | None, stop: Sequence[str]
) -> tuple[list[Piece], str, bool]:
    """(the turns, why the last one ended, whether by a limit of tokens)."""
    fmt, limits = session.fmt, session.limits
    pieces: list[Piece] = []
    ids, room, answered, calls_left = list(prompt.ids), prompt.room, prompt.calls, True
    left, number = client_limit, prompt.draws

    async def drawing(ids: list[int], max_tokens: int) -> Generation:
        nonlocal number
        number += 1
        return await generate(ids, max_tokens, number=number - 1, branch=prompt.branch, stop=stop)

    while True:
        most = min(limits.max_turn_tokens, room, *([left] if left else []))
        clock, before = time.perf_counter(), number
        turn = await whole_turn(drawing, ids, most, fmt)
        _check(turn, most)
        calls = _calls(session, prompt, turn)
        piece = Piece(turn, calls, time.perf_counter() - clock, number - before)
        pieces.append(piece)
        if not calls and (turn.ids[-1] in fmt.eos_ids or _stopped(fmt, turn.ids, stop)):
            return pieces, "answer", False
        if len(turn.ids) == room:
            return pieces, "length", True
        if not calls:
            return pieces, "turn_length" if len(turn.ids) == most else "length", True
        spent = answered + len(calls) > limits.max_turns
        if not calls_left or (spent and limits.after_last_call == "end"):
            return pieces, "max_turns", False
        if not spent and any(call.error is None for call in calls):
            return pieces, "", False
        texts = [NO_CALLS_LEFT if spent else str(call.error) for call in calls]
        calls_left = not spent
        answers = [session.answered(place, text) for place, text in enumerate(texts)]
        observation = fmt.continuation_ids(
            [], ended=turn.ids[-1] == fmt.eos_id, observations=[answer.text for answer in answers]
        )
        piece.answers = [] if spent else answers
        answered += len(piece.answers)
        room -= len(turn.ids) + len(observation)
        left = left and left - len(turn.ids)
        if room < 1:
            return pieces, "overflow", True
        if left is not None and left < 1:
            return pieces, "turn_length", True
        piece.observation_ids = observation
        ids += turn.ids + observation


def _calls(session: Session, prompt: Prompt, turn: Generation) -> list[ToolCall]:
    if prompt.tools == []:
        return []  # nothing can be called: the turn is text
    return session.fmt.parse(session.fmt.decode(turn.ids), prompt.tools)


def _stopped(fmt: Format, ids: Sequence[int], stop: Sequence[str]) -> bool:
    """Whether one of the client's texts ends the turn: its last token completes it."""
    text = fmt.decode(ids) if stop else ""
    return any(string in text for string in stop)


def _check(turn: Generation, max_tokens: int) -> None:
    if not 1 <= len(turn.ids) <= max_tokens:
        raise RuntimeError(f"The engine returned {len(turn.ids)} tokens for a turn, expected 1 to {max_tokens}.")
    if turn.logprobs is not None and len(turn.logprobs) != len(turn.ids):
        raise RuntimeError(f"The engine returned {len(turn.logprobs)} log-probabilities for {len(turn.ids)} tokens.")
