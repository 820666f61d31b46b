"""One trajectory as the page shows it: text by token, the role of every token, mask, probabilities, calls and times."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retool_mcore.metrics.text import roles
from retool_mcore.view.columns import WAITS
from retool_mcore.view.pieces import highlight, token_pieces

# Enough for a shade and a tooltip, and a third of the bytes of a float.
DIGITS = 4


def detail(record: Mapping, decode: Callable[[list[int]], str]) -> dict:
    """The JSON of one trajectory's record (metrics/records.py), whose tokens `decode` spells.

    Token lists cover the prompt and then the response. `pieces`: the text of each token; `roles`: [[role, start, end],
    ...] with role prompt, thought, code, observation or error; `trained`: [[start, end], ...], the tokens in the loss;
    `logprobs` (engine) and `trainer_logprobs`: one number a response token, null where it was not sampled or not
    recorded; `highlights`: {token: [[class, text], ...]}; `waits`: [[seconds for the engine, for tools], ...] by turn;
    and what the list lacks of the record.
    """
    prompt, response = record["prompt_ids"], record["response_ids"]
    shift = len(prompt)
    pieces = token_pieces(decode, prompt) + token_pieces(decode, response)
    sampled = [span for span in record["spans"] if span["kind"] == "policy"]
    return {
        "pred": record.get("pred"),
        "ground_truth": record.get("ground_truth"),
        "advantage": _advantage(record, sampled),
        "pieces": pieces,
        "prompt_tokens": shift,
        "roles": [["prompt", 0, shift], *([r, a + shift, b + shift] for r, a, b in roles(record))],
        "trained": [[start + shift, end + shift] for start, end in trained(record, sampled)],
        "logprobs": _on_sampled(record.get("logprobs"), sampled, len(response)),
        "trainer_logprobs": _on_sampled(record.get("old_log_probs"), sampled, len(response)),
        "highlights": _highlights(record, pieces, shift),
        "calls": [dict(call) for call in record["calls"]],
        "waits": [[round(turn[name], DIGITS) for name in WAITS] for turn in record.get("turn_notes") or []],
    }


def trained(record: Mapping, sampled: Sequence[Mapping]) -> list[tuple[int, int]]:
    """[start, end) of the response's tokens in the loss: by the mask that the loss received where that is recorded."""
    mask = record.get("response_mask")
    if mask is None:
        return [(span["start"], span["end"]) for span in sampled]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], np.asarray(mask, np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _advantage(record: Mapping, sampled: Sequence[Mapping]) -> float | None:
    """Of the first sampled token: group-relative advantages are the same for all tokens of a trajectory."""
    values = record.get("advantages")
    return None if values is None or not sampled else round(float(values[sampled[0]["start"]]), DIGITS)


def _on_sampled(values: Sequence[float] | None, sampled: Sequence[Mapping], count: int) -> list[float | None]:
    shown: list[float | None] = [None] * count
    if values is None or len(values) != count:
        return shown
    for span in sampled:
        for position in range(span["start"], span["end"]):
            value = float(values[position])
            shown[position] = round(value, DIGITS) if math.isfinite(value) else None
    return shown


def _highlights(record: Mapping, pieces: Sequence[str], shift: int) -> dict[int, list[tuple[str, str]]]:
    turn_ends = [span["end"] for span in record["spans"] if span["kind"] == "policy"]
    found: dict[int, list[tuple[str, str]]] = {}
    for call in record["calls"]:
        start, end = call["start"] + shift, turn_ends[call["turn"]] + shift
        parts = highlight(pieces[start:end], call["code"] or "")
        for position, row in enumerate(parts or [], start=start):
            if any(css for css, _ in row):
                found[position] = row
    return found
