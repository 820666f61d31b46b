"""Sets of real numbers, however they are written: intervals, conditions, what is left out, as intervals in order."""

import itertools
import math
import re
from dataclasses import dataclass, replace

from retool_mcore.rewards.grader.nodes import Node, Unreadable, build
from retool_mcore.rewards.grader.relations import CALL, FLIPPED, NAME, ORDER, assigned, real_value
from retool_mcore.rewards.grader.scalar import same_scalar

_WITHOUT = re.compile(r"(.+?) ?(?:\\setminus|(?<=[})])-(?=[\[(\\])) ?(.+)", re.DOTALL)
_ABSOLUTE = re.compile(r"\|([A-Za-z])\|")
_CONDITIONS = ORDER | {r"\ne"}
INFINITY = r"\infty"


@dataclass(frozen=True)
class Piece:
    """An interval: its ends as values and texts, and whether they belong to it."""

    low: float
    high: float
    ends: tuple[str, str]
    closed: tuple[bool, bool]


@dataclass(frozen=True)
class Region:
    """pieces: apart and in order. name: the unknown, "" without one. sure: whether it can be nothing else (a pair)."""

    pieces: tuple[Piece, ...]
    name: str = ""
    sure: bool = True


_ALL: tuple[Piece, ...] = (Piece(-math.inf, math.inf, ("-" + INFINITY, INFINITY), (False, False)),)


def _piece(low: str, high: str, closed: tuple[bool, bool]) -> tuple[Piece, ...] | None:
    values = real_value(low), real_value(high)
    if None in values or not (values[0] < values[1] or (low == high and all(closed))):
        return None
    return (Piece(*values, (low, high), closed),)


def _union(pieces) -> tuple[Piece, ...]:
    """Merge pieces that touch or contain each other."""
    merged: list[Piece] = []
    for piece in sorted(pieces, key=lambda p: (p.low, not p.closed[0])):
        last = merged[-1] if merged else None
        if last and (last.high > piece.low or (last.high == piece.low and (last.closed[1] or piece.closed[0]))):
            if (piece.high, piece.closed[1]) > (last.high, last.closed[1]):
                ends, closed = (last.ends[0], piece.ends[1]), (last.closed[0], piece.closed[1])
                merged[-1] = Piece(last.low, piece.high, ends, closed)
        else:
            merged.append(piece)
    return tuple(merged)


def _complement(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    ends = [(p.low, p.ends[0], not p.closed[0], p.high, p.ends[1], not p.closed[1]) for p in pieces]
    lows = [(-math.inf, "-" + INFINITY, False), *(end[3:] for end in ends)]
    highs = [*(end[:3] for end in ends), (math.inf, INFINITY, False)]
    return tuple(
        Piece(low[0], high[0], (low[1], high[1]), (low[2], high[2]))
        for low, high in zip(lows, highs, strict=True)
        if low[0] < high[0] or (low[0] == high[0] and low[2] and high[2])
    )


def _intersection(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> tuple[Piece, ...]:
    return _complement(_union([*_complement(a), *_complement(b)]))


def region(node: Node) -> Region | None:
    """The real numbers that a node describes; None when it describes anything else, or letters bound them."""
    if node.kind == "scalar":
        return _of_text(node.text)
    if node.kind == "bracket" and len(node.items) == 2:
        pieces = _piece(node.items[0].text, node.items[1].text, (node.brackets[0] == "[", node.brackets[1] == "]"))
        return Region(pieces, sure=node.brackets in ("[)", "(]") or INFINITY in node.text) if pieces else None
    if node.kind == "set":
        points = [_piece(item.text, item.text, (True, True)) for item in node.items if item.kind == "scalar"]
        complete = len(points) == len(node.items) and None not in points
        return Region(_union(itertools.chain(*points)), sure=False) if complete else None
    if node.kind == "union":
        return _joined([region(item) for item in node.items], "or")
    if node.kind == "relation":
        return _of_relation(node)
    if node.kind == "list" and len(node.items) > 1:
        return _of_list(node)
    return None


def _of_text(text: str) -> Region | None:
    if r"\cap" in text:
        return _joined([region(build(part)) for part in text.split(r"\cap") if part], "and")
    if not (match := _WITHOUT.fullmatch(text)):
        return None
    try:
        whole, hole = region(build(match[1])), region(build(match[2]))
    except Unreadable:
        return None
    return Region(_intersection(whole.pieces, _complement(hole.pieces))) if whole and hole else None


def _of_relation(node: Node) -> Region | None:
    operators, items = node.operators, [item.text for item in node.items]
    if operators[0] in (">", r"\ge"):
        operators, items = tuple(FLIPPED.get(op, op) for op in reversed(operators)), items[::-1]
    if operators == (r"\ne",) and NAME.fullmatch(items[0]) and (hole := _piece(items[1], items[1], (True, True))):
        return Region(_complement(hole), items[0])
    if not set(operators) <= {"<", r"\le"} or any(item.kind != "scalar" for item in node.items):
        return None
    closed = [op == r"\le" for op in operators]
    if len(items) == 2:
        at = int(real_value(items[0]) is not None)
        items = ["-" + INFINITY, *items] if not at else [*items, INFINITY]
        closed = [False, *closed] if not at else [*closed, False]
    if len(items) != 3 or not (pieces := _piece(items[0], items[2], (closed[0], closed[1]))):
        return None
    if match := _ABSOLUTE.fullmatch(items[1]):
        if pieces[0].high <= 0:
            return None
        low = items[2].removeprefix("+")
        mirror = "-" + INFINITY if low == INFINITY else f"-({low})"
        inner = Piece(-pieces[0].high, pieces[0].high, (mirror, low), (closed[1], closed[1]))
        hole = _piece(f"-({items[0]})", items[0], (not closed[0], not closed[0])) if pieces[0].low > 0 else ()
        return Region(_intersection((inner,), _complement(hole)), match[1])
    return Region(pieces, items[1]) if NAME.fullmatch(items[1]) or CALL.fullmatch(items[1]) else None


def _of_list(node: Node) -> Region | None:
    first = node.items[0]
    if first.kind == "relation" and first.operators == (r"\ne",) and node.join != "or":  # `x \ne 1, 2`
        name = first.items[0].text
        items = [i if i.kind == "relation" else build(rf"{name}\ne {i.text}") for i in node.items]
        return _joined([_of_relation(item) for item in items], "and")
    if any(item.kind == "relation" and set(item.operators) & _CONDITIONS for item in node.items):
        return _joined([_condition(item) for item in node.items], "or" if node.join == "or" else "and")
    if node.join in ("or", "and") and all(item.kind in ("bracket", "union") for item in node.items):
        parts = [region(item) for item in node.items]
        return _joined(parts, "or") if any(part and part.sure for part in parts) else None
    return None


def _condition(node: Node) -> Region | None:
    if node.kind == "relation" and node.operators == ("=",) and (value := assigned(node, is_truth=True)):
        interval = region(Node("set", value.text, (value,)))
        return replace(interval, name=node.items[0].text) if interval else None
    if node.kind == "relation" and node.operators == (r"\in",) and (interval := region(node.items[1])):
        return replace(interval, name=node.items[0].text)
    return region(node)


def _joined(parts: list[Region | None], join: str) -> Region | None:
    if None in parts or len(names := {part.name for part in parts} - {""}) > 1:
        return None
    if join == "or":
        return Region(_union(piece for part in parts for piece in part.pieces), "".join(names))
    pieces = _ALL
    for part in parts:
        pieces = _intersection(pieces, part.pieces)
    return Region(pieces, "".join(names))


def same_regions(a: Region, t: Region) -> bool | None:
    """Whether two regions are the same real numbers of the same unknown."""
    if (a.name and t.name and a.name != t.name) or [p.closed for p in a.pieces] != [p.closed for p in t.pieces]:
        return False
    ends = [pair for p, q in zip(a.pieces, t.pieces, strict=True) for pair in zip(p.ends, q.ends, strict=True)]
    verdicts = [x.lstrip("+") == y.lstrip("+") or same_scalar(x, y) for x, y in ends]
    return False if False in verdicts else None if None in verdicts else True
