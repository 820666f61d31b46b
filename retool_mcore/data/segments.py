"""Responses of traces, spelt from segments: token ids, response mask and spans as a rollout would leave them."""

from collections.abc import Mapping, Sequence

from retool_mcore.data.formats import Format
from retool_mcore.errors import UserError


def render_segments(
    fmt: Format, tokenizer, segments: Sequence[Mapping], tools: list[dict] | None = None
) -> tuple[list[int], list[int], list[tuple]]:
    """Token ids, mask and spans of the response that `segments` ({kind, text}) spell: SFT's counterpart of a rollout.

    Returns (ids, mask, spans): mask is 1 on policy tokens, the end of a turn included, and 0 on observation tokens;
    spans are (kind, start, end) with kind "policy" or "observation" and partition the ids. In format `none` only the
    text segments are kept. Raises UserError when the segments are not text/code/observation in a possible order, or
    when the rollout would read a policy turn as other calls than the segments say (as with a program that holds
    `</code>`). `tools` are the schemas that the prompt listed: the last text may then call them, and must do it right.
    """
    ids: list[int] = []
    mask: list[int] = []
    spans: list[tuple[str, int, int]] = []

    def append(kind: str, piece: list[int]) -> None:
        spans.append((kind, len(ids), len(ids) + len(piece)))
        ids.extend(piece)
        mask.extend([int(kind == "policy")] * len(piece))

    text = ""
    code = None
    for position, segment in enumerate(segments):
        kind, content = segment["kind"], segment["text"]
        content = content if kind == "observation" else fmt.neutral(content)  # `observation_ids` does it there
        if kind not in ("text", "code", "observation") or (kind == "observation") != (code is not None):
            raise UserError(f"Segment {position} is {kind!r}: expected text, or code and right behind it its output.")
        if kind == "text":
            text += content
        elif kind == "code":
            code = content
        else:
            if fmt.name != "none":
                end = [] if fmt.turn_end is None else [fmt.turn_end]
                append("policy", tokenizer.encode(_turn(fmt, text, code), add_special_tokens=False) + end)
                append("observation", fmt.observation_ids([content]))
                text = ""
            code = None
    if code is not None or not segments:
        raise UserError("The segments are empty or end in a program without its observation.")
    for call in fmt.parse(text + fmt.eos_text, tools) if tools is not None else ():
        if call.error:
            raise UserError(f"A call would be read as malformed ({call.error}); the turn begins {text[:200]!r}.")
    last = _turn(fmt, text, None) if tools is None else text
    append("policy", tokenizer.encode(last, add_special_tokens=False) + [fmt.eos_id])
    return ids, mask, spans


def _turn(fmt: Format, text: str, code: str | None) -> str:
    turn = fmt.turn_text(text, code)
    expected = [] if code is None else [code]
    codes = [call.code for call in fmt.parse(turn)]
    if codes != expected:
        raise UserError(f"A turn would be read as the calls {codes!r}, not {expected!r}; it begins {turn[:200]!r}.")
    return turn
