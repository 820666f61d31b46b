"""One episode: the policy writes, calls its tools, reads the observations and goes on, until the trajectory ends.

Token ids in, token ids out. What the policy sampled is kept verbatim, because decoding and encoding again gives other
ids than those whose log-probabilities the engine reported (ratios then drift until training collapses); text is only
read, to find calls.
"""

import asyncio
import bisect
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from retool_mcore.data.blocks import prose
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.formats import Format, ToolCall
from retool_mcore.errors import UserError
from retool_mcore.rollout.trajectory import Call, Span, Trajectory, Turn, Version
from retool_mcore.sandbox.base import ERROR_LINES, Sandbox, Status
from retool_mcore.tools.base import Episode, Reply
from retool_mcore.tools.code import CodeInterpreter
from retool_mcore.tools.toolbox import Toolbox

_MIN_OBSERVATION_TOKENS = 32
NO_CALLS_LEFT = "No calls are left: go on in text"  # of 32 characters, so that no limit of tokens can cut it
_MAX_FAKES = 8  # of one turn; to place one the turn is decoded a dozen times


@dataclass(frozen=True)
class Limits:
    """Bounds of an episode, in tokens except `max_turns`.

    max_turns: calls in the whole trajectory, malformed ones and texts that an environment answers included; 0 allows
    none. max_turn_tokens: one policy turn.
    max_response_tokens: the response, observations included. max_observation_tokens: the text of one observation,
    before tags or headers; a longer one keeps its head and its tail. Before that, `max_observation_chars` keeps an
    observation's first characters (None: all) and `error_lines` the last lines of an error. A turn that calls beyond
    `max_turns` ends the trajectory (`after_last_call` "end"); or it is answered once that no calls are left, without
    running any, and the next one that calls ends it ("text"). Raises UserError for values that no episode can honour.
    """

    max_turns: int
    max_turn_tokens: int
    max_response_tokens: int
    max_observation_tokens: int
    max_observation_chars: int | None = None
    error_lines: int = ERROR_LINES
    after_last_call: str = "end"

    def __post_init__(self):
        if self.after_last_call not in ("end", "text"):
            raise UserError(f"rollout.after_last_call is {self.after_last_call!r}: expected end or text.")
        sizes = [self.max_turn_tokens, self.max_response_tokens, self.error_lines, self.max_observation_chars or 1]
        if self.max_turns < 0 or min(sizes) < 1:
            raise UserError(f"Limits must be positive (max_turns may be 0), got {self}.")
        if self.max_observation_tokens < _MIN_OBSERVATION_TOKENS:
            raise UserError(
                f"limits.max_observation_tokens is {self.max_observation_tokens}: expected at least "
                f"{_MIN_OBSERVATION_TOKENS}, room for the marker that says how much was cut."
            )


LIMITS = tuple(field.name for field in fields(Limits))


@dataclass(frozen=True)
class Generation:
    """One sampled turn as the engine returned it: `ids` with the end token, `logprobs` of the same length or None.

    `versions`: (version of the weights, tokens that they wrote), in order; empty where the engine tells none.
    """

    ids: list[int]
    logprobs: list[float] | None
    versions: Sequence[tuple[int, int]] = ()


async def run_episode(
    prompt_ids: Sequence[int],
    *,
    generate: Callable[[list[int], int], Awaitable[Generation]],
    sandbox: Sandbox | None,
    fmt: Format,
    tokenizer,
    limits: Limits,
    timeout_s: float,
    tools: Toolbox | None = None,
    row: Mapping | None = None,
) -> Trajectory:
    """Run one episode from `prompt_ids` and return its trajectory.

    `generate(ids, max_tokens)` samples one turn after `ids` and stops at an end token or, last, at one of `fmt.stop`.
    `tools` answer the calls; None: the code interpreter alone, over `sandbox`, which runs each program for at most
    `timeout_s` seconds and may be None in format `none`, where nothing is called. `row` is what the tools see of the
    data set's row. Raises RuntimeError when the engine returns no token, more than `max_tokens` tokens, or
    log-probabilities of another length or only for some turns.
    """
    trajectory = Trajectory(
        list(prompt_ids), [], [], [], spans=[], calls=[], turns=0, finish="", generate_s=0.0, tool_s=0.0
    )
    trajectory.started = time.time()
    tools = tools or Toolbox([CodeInterpreter(sandbox, timeout_s, limits.error_lines)])
    episode = Episode(row or {})
    try:
        await _turns(trajectory, generate, fmt, tokenizer, limits, tools, episode)
    finally:
        await tools.release(episode)
    return trajectory


async def _turns(
    trajectory: Trajectory,
    generate: Callable[[list[int], int], Awaitable[Generation]],
    fmt: Format,
    tokenizer,
    limits: Limits,
    tools: Toolbox,
    episode: Episode,
) -> None:
    def spent(calls: Sequence[ToolCall]) -> bool:
        return len(trajectory.calls) + len(calls) > limits.max_turns

    calls_left = True
    while trajectory.finish == "":
        turn_start = len(trajectory.response_ids)
        room = limits.max_response_tokens - turn_start
        max_tokens = min(limits.max_turn_tokens, room)
        clock = time.perf_counter()
        turn = await whole_turn(generate, trajectory.prompt_ids + trajectory.response_ids, max_tokens, fmt)
        generate_s = time.perf_counter() - clock
        trajectory.generate_s += generate_s
        check_turn(turn, max_tokens, trajectory)
        text = fmt.decode(turn.ids)
        calls = fmt.parse(text, tools.schemas)
        note = append_turn(trajectory, turn, text, calls, fmt, generate_s)

        if not calls and turn.ids[-1] in fmt.eos_ids:
            if tools.partner is None:
                trajectory.finish = "answer"
            elif len(trajectory.calls) >= limits.max_turns:
                trajectory.finish = "max_turns"
            else:
                await _play(trajectory, turn.ids, turn_start, note, fmt, tokenizer, limits, tools, episode)
        elif len(turn.ids) == room:
            trajectory.finish = "length"
        elif not calls:
            # A turn that ended neither on its own nor by a limit of ours met the end of the engine's context.
            trajectory.finish = "turn_length" if len(turn.ids) == max_tokens else "length"
        elif not calls_left or (spent(calls) and limits.after_last_call == "end"):
            trajectory.finish = "max_turns"
        elif spent(calls):
            calls_left = False
            _show(trajectory, [NO_CALLS_LEFT] * len(calls), fmt, limits)
        else:
            clock = time.perf_counter()
            replies = await _answer(calls, tools, episode)
            note.tool_s = time.perf_counter() - clock
            observations = []
            for call, reply in zip(calls, replies, strict=True):
                whole = call.error if reply is None else reply.text
                head = whole[: limits.max_observation_chars]
                text, truncated = cut_observation(fmt, tokenizer, head, limits.max_observation_tokens)
                truncated |= len(head) < len(whole)
                start = turn_start + token_at(fmt, turn.ids, call.start)
                trajectory.calls.append(noted_call(call, reply, trajectory.turns - 1, start, truncated))
                observations.append(text)
            trajectory.tool_s += note.tool_s
            if any(reply is not None and reply.status == Status.SANDBOX for reply in replies):
                trajectory.finish = str(Status.SANDBOX)
            elif any(tools.one_turn if reply is None else reply.ends for reply in replies):
                trajectory.finish = "tool"
            else:
                _show(trajectory, observations, fmt, limits)


async def _play(
    trajectory: Trajectory,
    ids: list[int],
    turn_start: int,
    note: Turn,
    fmt: Format,
    tokenizer,
    limits: Limits,
    tools: Toolbox,
    episode: Episode,
) -> None:
    """Let the environment answer a turn that calls nothing. It counts as a call, and the last one that
    `limits.max_turns` allows ends the trajectory: a further turn would be answered by nobody."""
    clock = time.perf_counter()
    reply = await tools.answer(without_thought(tokenizer.decode(ids, skip_special_tokens=True)), episode)
    note.tool_s = time.perf_counter() - clock
    trajectory.tool_s += note.tool_s
    head = reply.text[: limits.max_observation_chars]
    text, truncated = cut_observation(fmt, tokenizer, head, limits.max_observation_tokens)
    truncated |= len(head) < len(reply.text)
    call = ToolCall(None, None, 0, tools.partner.name if tools.partner else None)
    trajectory.calls.append(noted_call(call, reply, trajectory.turns - 1, turn_start, truncated))
    if reply.status == Status.SANDBOX:
        trajectory.finish = str(Status.SANDBOX)
    elif reply.ends:
        trajectory.finish = "tool"
    elif len(trajectory.calls) >= limits.max_turns:
        trajectory.finish = "max_turns"
    else:
        ended = trajectory.response_ids[-1] == fmt.eos_id  # else with another end token: the template's own closes it
        answer = fmt.user_ids(text)
        _append_observation(trajectory, answer if ended else [fmt.eos_id, *answer], limits)


def without_thought(text: str) -> str:
    """Return what a text says behind its thoughts (`</think>`), which no environment should read for an action."""
    return text.rpartition("</think>")[2].strip()


async def whole_turn(
    generate: Callable[[list[int], int], Awaitable[Generation]], ids: list[int], max_tokens: int, fmt: Format
) -> Generation:
    """Sample one turn after `ids`: beyond a stop string that only stands in a string or comment of its program."""
    turn = await generate(ids, max_tokens)
    while len(turn.ids) < max_tokens and fmt.stop and turn.ids and _stopped_inside(turn.ids, fmt):
        rest = await generate(ids + turn.ids, max_tokens - len(turn.ids))
        if (rest.logprobs is None) != (turn.logprobs is None):
            raise RuntimeError("The engine returned log-probabilities for some parts of a turn but not for others.")
        logprobs = None if turn.logprobs is None else turn.logprobs + (rest.logprobs or [])
        turn = Generation(turn.ids + rest.ids, logprobs, [*turn.versions, *rest.versions])
        if not rest.ids:
            break
    return turn


def _stopped_inside(ids: list[int], fmt: Format) -> bool:
    text = fmt.decode(ids)
    # The last token completes the stop string; where the engine's context ended the turn, it does not.
    last = max(text.rfind(stop) + len(stop) for stop in fmt.stop)
    return ids[-1] not in fmt.eos_ids and fmt.goes_on(text) and last > len(fmt.decode(ids[:-1]))


def _show(trajectory: Trajectory, observations: list[str], fmt: Format, limits: Limits) -> None:
    """Append what the calls of the last turn are answered with, or end the trajectory where it does not fit."""
    # A turn that was cut off, or ended with another end token, is closed by the template's own, unsampled.
    ended = trajectory.response_ids[-1] == fmt.eos_id
    _append_observation(trajectory, fmt.continuation_ids([], ended=ended, observations=observations), limits)


def _append_observation(trajectory: Trajectory, ids: list[int], limits: Limits) -> None:
    # One token has to remain: a response must not end on a token that the loss and the reward leave out.
    if len(trajectory.response_ids) + len(ids) < limits.max_response_tokens:
        append_span(trajectory, "observation", ids, None)
    else:
        trajectory.finish = "overflow"


async def _answer(calls: Sequence[ToolCall], tools: Toolbox, episode: Episode) -> list[Reply | None]:
    """The replies in the order of the calls, None for a malformed one: one after the other, or together if all may."""

    async def answer(call: ToolCall) -> Reply | None:
        return None if call.error else await tools.call(call.name, call.arguments, episode)

    if all(call.error or tools.tools[call.name].parallel for call in calls):
        return await asyncio.gather(*map(answer, calls))
    return [await answer(call) for call in calls]


def noted_call(call: ToolCall, reply: Reply | None, turn: int, start: int, truncated: bool) -> Call:
    """Return the record of a call; `reply` is None for a malformed one. turn, start: as in `Call`."""
    try:
        arguments = None if call.code is not None or call.arguments is None else json.dumps(call.arguments)
    except (RecursionError, ValueError):
        arguments = None
    called: dict[str, Any] = {
        "turn": turn,
        "start": start,
        "truncated": truncated,
        "tool": call.name,
        "arguments": arguments,
    }
    if reply is None:
        return Call(None, True, "malformed", "", call.error, None, 0.0, **called)
    stdout, stderr = reply.stdout, reply.stderr
    if stdout is None and stderr is None:
        stdout, stderr = (reply.text, "") if reply.status == "success" else ("", reply.text)
    return Call(
        code=call.code,
        malformed=False,
        status=reply.status,
        stdout=stdout or "",
        stderr=stderr or "",
        value=reply.value,
        duration_s=reply.duration_s,
        **called,
    )


def cut_observation(fmt: Format, tokenizer, text: str, max_tokens: int) -> tuple[str, bool]:
    """`text` in at most `max_tokens` tokens, and whether it was cut.

    A cut keeps head and tail around a marker that says how many tokens are missing, and falls between characters. The
    text comes back neutralised (`Format.plain`), because that is the text whose tokens count.
    """
    text = fmt.plain(text)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    total = len(offsets)
    if total <= max_tokens:
        return text, False
    keep = max_tokens
    while True:
        head, tail = (keep + 1) // 2, keep // 2
        marker = f"\n[... {total - head - tail} tokens cut ...]\n"
        shortened = text[: offsets[head][0]] + marker + (text[offsets[total - tail - 1][1] :] if tail else "")
        excess = len(fmt.encode(shortened)) - max_tokens
        if excess <= 0 or keep == 0:
            return shortened, True
        # Tokens may merge otherwise around the marker, so the length is measured, not computed.
        keep = max(0, keep - excess)


def token_at(fmt: Format, ids: list[int], character: int) -> int:
    """Return the index of the token of `ids` that holds this character of their text; nothing is encoded for it."""
    return bisect.bisect_right(range(1, len(ids)), character, key=lambda count: len(fmt.decode(ids[:count])))


def _fakes(fmt: Format, ids: list[int], text: str, turn_start: int) -> list[int]:
    """Offsets in the response of the policy's tokens in which it opens an interpreter's block itself."""
    fakes, position = [], text.find(fmt.observation_open) if fmt.observation_open else -1
    while position >= 0 and len(fakes) < _MAX_FAKES:
        fakes.append(turn_start + token_at(fmt, ids, position))
        position = text.find(fmt.observation_open, position + 1)
    return fakes


def append_turn(
    trajectory: Trajectory, turn: Generation, text: str, calls: Sequence[ToolCall], fmt: Format, generate_s: float
) -> Turn:
    """Append a sampled turn, of that text and with the calls that were read in it, to the trajectory; return its note,
    which is appended, too."""
    start = len(trajectory.response_ids)
    append_span(trajectory, "policy", turn.ids, turn.logprobs)
    _note_versions(trajectory.versions, start, turn.versions)
    note = Turn(
        programs=sum(call.error is None for call in calls),
        boxed=last_boxed(prose(text)) is not None,
        fakes=_fakes(fmt, turn.ids, text, start),
        generate_s=generate_s,
    )
    trajectory.turn_notes.append(note)
    return note


def append_span(trajectory: Trajectory, kind: str, ids: list[int], logprobs: list[float] | None) -> None:
    """Append ids of one kind, "policy" or "observation", with mask, log-probabilities and span."""
    start = len(trajectory.response_ids)
    trajectory.response_ids.extend(ids)
    trajectory.response_mask.extend([int(kind == "policy")] * len(ids))
    trajectory.spans.append(Span(kind, start, start + len(ids)))
    if kind == "policy":
        trajectory.turns += 1
        trajectory.logprobs.extend(logprobs or [])
    elif trajectory.logprobs:
        trajectory.logprobs.extend([0.0] * len(ids))


def _note_versions(versions: list[Version], start: int, written: Sequence[tuple[int, int]]) -> None:
    for version, tokens in written:
        if not versions or versions[-1].version != version:
            versions.append(Version(version, start, start))
        start += tokens
        versions[-1].end = start


def check_turn(turn: Generation, max_tokens: int, trajectory: Trajectory) -> None:
    """Raises RuntimeError for a turn that no engine may return after `trajectory`."""
    if not 1 <= len(turn.ids) <= max_tokens:
        raise RuntimeError(f"The engine returned {len(turn.ids)} tokens for a turn, expected 1 to {max_tokens}.")
    if turn.logprobs is not None and len(turn.logprobs) != len(turn.ids):
        raise RuntimeError(f"The engine returned {len(turn.logprobs)} log-probabilities for {len(turn.ids)} tokens.")
    if trajectory.turns and (turn.logprobs is not None) != bool(trajectory.logprobs):
        raise RuntimeError("The engine returned log-probabilities for some turns of a trajectory but not for others.")
