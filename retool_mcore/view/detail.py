"""One trajectory as the page shows it: text by token, the role of every token, mask, probabilities, calls and times."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter

import numpy as np
from pygments.lexers import PythonLexer
from pygments.token import STANDARD_TYPES

from retool_mcore.metrics.behaviour import policy_spans, queued_s
from retool_mcore.metrics.text import roles

# Enough for a shade and a tooltip, and a third of the bytes of a float.
DIGITS = 4
# A UTF-8 character is at most four bytes, and a byte-level token at least one.
_LONGEST_CHARACTER = 4
_LEXER = PythonLexer(stripnl=False, ensurenl=False)


def detail(record: Mapping, decode: Callable[[list[int]], str]) -> dict:
    """The JSON of one trajectory's record (metrics/records.py), whose tokens `decode` spells.

    Token lists cover the prompt and then the response. `pieces`: the text of each token; `roles`: [[role, start, end],
    ...] with role prompt, thought, code, observation or error; `trained`: [[start, end], ...], the tokens in the loss;
    `logprobs` (engine) and `trainer_logprobs`: one number a response token, null where it was not sampled or not
    recorded; `highlights`: {token: [[class, text], ...]}; `waits`: [[seconds for the engine, in which
    no tool ran, for tools that run], ...] by turn; and what the list lacks of the record.
    """
    prompt, response = record["prompt_ids"], record["response_ids"]
    shift = len(prompt)
    pieces = token_pieces(decode, prompt) + token_pieces(decode, response)
    sampled, advantages = policy_spans(record), record.get("advantages")
    # Of the first sampled token: group-relative advantages are the same for all tokens of a trajectory.
    first = None if advantages is None or not sampled else round(float(advantages[sampled[0][0]]), DIGITS)
    return {
        "pred": record.get("pred"),
        "ground_truth": record.get("ground_truth"),
        "advantage": first,
        "pieces": pieces,
        "prompt_tokens": shift,
        "roles": [["prompt", 0, shift], *([r, a + shift, b + shift] for r, a, b in roles(record))],
        "trained": [[start + shift, end + shift] for start, end in trained(record, sampled)],
        "logprobs": _on_sampled(record.get("logprobs"), sampled, len(response)),
        "trainer_logprobs": _on_sampled(record.get("old_log_probs"), sampled, len(response)),
        "highlights": _highlights(record, sampled, pieces, shift),
        "calls": [dict(call) for call in record["calls"]],
        "waits": _waits(record) if record.get("turn_notes") else [],
    }


def _waits(record: Mapping) -> list[list[float]]:
    notes = zip(record["turn_notes"], queued_s(record), strict=True)
    waits = ((note["generate_s"], queued, note["tool_s"] - queued) for note, queued in notes)
    return [[round(seconds, DIGITS) for seconds in of_turn] for of_turn in waits]


def trained(record: Mapping, sampled: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """[start, end) of the response's tokens in the loss: by the mask that the loss received where that is recorded."""
    mask = record.get("response_mask")
    if mask is None:
        return sampled
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _on_sampled(values: Sequence[float] | None, sampled: list[tuple[int, int]], count: int) -> list[float | None]:
    shown: list[float | None] = [None] * count
    for start, end in sampled if values is not None and len(values) == count else ():
        for position, value in enumerate(map(float, values[start:end]), start):
            shown[position] = round(value, DIGITS) if math.isfinite(value) else None
    return shown


def _highlights(
    record: Mapping, sampled: list[tuple[int, int]], pieces: Sequence[str], shift: int
) -> dict[int, list[tuple[str, str]]]:
    by_position: dict[int, list[tuple[str, str]]] = {}
    for call in record["calls"]:
        start, end = call["start"] + shift, sampled[call["turn"]][1] + shift
        parts = highlight(pieces[start:end], call["code"] or "")
        for position, row in enumerate(parts or [], start=start):
            if any(css for css, _ in row):
                by_position[position] = row
    return by_position


def token_pieces(decode: Callable[[list[int]], str], ids: Sequence[int]) -> list[str]:
    """The text of each token of `ids` by `decode`, which keeps special tokens; joined they are the decoded text.

    Where several tokens share one character, the first has it and the others are "". Bytes that are no character
    become U+FFFD.
    """
    ids = [int(i) for i in ids]
    pieces: list[str] = []
    while len(pieces) < len(ids):
        start = len(pieces)
        text, count = decode(ids[start : start + 1]), 1
        if "\ufffd" in text:
            for longer in range(2, _LONGEST_CHARACTER + 1):
                whole = decode(ids[start : start + longer])
                if "\ufffd" not in whole:
                    text, count = whole, min(longer, len(ids) - start)
                    break
        pieces += [text] + [""] * (count - 1)
    return pieces


def highlight(pieces: Sequence[str], code: str) -> list[list[tuple[str, str]]] | None:
    """Each piece as (CSS class of Pygments, text) parts, where `code` stands in the joined pieces; None if it does not.

    Outside of the program the class is "".
    """
    text = "".join(pieces)
    start = text.find(code)
    if not code or start < 0:
        return None
    classes = [""] * len(text)
    for offset, kind, value in _LEXER.get_tokens_unprocessed(code):
        classes[start + offset : start + offset + len(value)] = [STANDARD_TYPES.get(kind, "")] * len(value)
    characters = zip(classes, text, strict=True)
    return [
        [(css, "".join(part[1] for part in run)) for css, run in groupby(islice(characters, len(piece)), itemgetter(0))]
        for piece in pieces
    ]
