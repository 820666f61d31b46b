"""A row of the report: the reasoning and the trace side by side, with what is in one alone marked."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from html import escape

from markupsafe import Markup

from retool_mcore.coldstart.rows import Row

_PIECE = re.compile(r"\s+|(?:\w+|[^\w\s]+)\s*")
# Fewer words in common are chance.
_LEAST_WORDS = 3
# Beyond it the comparison, quadratic at worst, takes longer than the reader.
_MAX_PIECES = 20_000


def pair(row: Row) -> dict:
    """{before: HTML of the reasoning, trace: [(kind, HTML, the claimed output where it is another, else "")]}."""
    texts = [segment["text"] for segment in row.segments if segment["kind"] == "text"]
    before, *after = map(Markup, marked(row.reasoning, texts))
    prose, claims, trace = iter(after), iter(row.claimed), []
    for segment in row.segments:
        kind, text = segment["kind"], segment["text"]
        claimed = next(claims, text) if kind == "observation" else text
        other = claimed if claimed.strip() != text.strip() else ""
        trace.append((kind, next(prose) if kind == "text" else text, other))
    return {"before": before, "trace": trace}


def marked(before: str, after: list[str]) -> list[str]:
    """HTML of `before` and of each text of `after`, what the other side lacks in <del> and <ins>."""
    a = _PIECE.findall(before)
    groups = [_PIECE.findall(text) for text in after]
    b = [piece for group in groups for piece in group]
    same_a, same_b = [False] * len(a), [False] * len(b)
    if len(a) + len(b) <= _MAX_PIECES:
        words_a, words_b = ([piece.strip() for piece in pieces] for pieces in (a, b))
        for block in SequenceMatcher(None, words_a, words_b).get_matching_blocks():
            if block.size >= _LEAST_WORDS:
                same_a[block.a : block.a + block.size] = [True] * block.size
                same_b[block.b : block.b + block.size] = [True] * block.size
    else:
        same_a, same_b = [True] * len(a), [True] * len(b)
    found, start = ["".join(_spans(a, same_a, "del"))], 0
    for group in groups:
        end = start + len(group)
        found.append("".join(_spans(group, same_b[start:end], "ins")))
        start = end
    return found


def _spans(pieces: list[str], same: list[bool], tag: str) -> Iterator[str]:
    start = 0
    for end in range(1, len(pieces) + 1):
        if end == len(pieces) or same[end] != same[start]:
            text = escape("".join(pieces[start:end]))
            yield text if same[start] or not text.strip() else f"<{tag}>{text}</{tag}>"
            start = end
