"""What a relation or an interval amounts to: the value it assigns, the interval it describes, its sides' difference."""

import itertools
import math
import re

from retool_mcore.rewards.grader import canonical, numeric
from retool_mcore.rewards.grader.nodes import Node, build
from retool_mcore.rewards.grader.scalar import form, parsed

_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne", "=": "="}
ORDER = frozenset(["<", ">", r"\le", r"\ge"])
_ABSOLUTE = re.compile(r"\|([A-Za-z])\|")
NAME = re.compile(r"[A-Za-z]\w*'*|\\[A-Za-z]+|[A-Za-z]_\{\w+\}'*")
CALL = re.compile(r"(\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{-1\})?)\((.*)\)", re.DOTALL)


def member(node: Node) -> Node:
    r"""`x \in S` and `x \approx 5` as what follows; of `1/3 \approx 0.33` only the exact part."""
    if node.kind != "relation":
        return node
    if node.operators == (r"\in",):
        return node.items[1]
    if r"\approx" in node.operators:
        at = node.operators.index(r"\approx")
        if at == 0:
            exact = parsed(node.items[0].text)
            return node.items[0] if exact is not None and not exact.symbols else node.items[1]
        if set(node.operators[:at]) == {"="}:
            return Node("relation", node.text, node.items[: at + 1], node.operators[:at])
    return node


def assigned(relation: Node, is_truth: bool) -> Node | None:
    """What an equation gives to its left side; None when that is no name but part of an equation to be solved."""
    left, last = relation.items[0], relation.items[-1]
    if left.kind != "scalar":
        return last
    tree = parsed(left.text)
    if tree is None or tree.tree[0] in ("sym", "call", "fn"):
        return last if tree is not None or not re.search(r"[+]|^[0-9]", left.text) else None
    value = form(left.text)
    if not tree.symbols:
        constants = value is not None and form(last.text) is not None
        return last if constants and value == form(last.text) else (None if constants else last)
    if _is_product_of_symbols(tree.tree):
        return last
    if is_truth:
        return None
    # An answer may repeat what was asked for, `m + n = 5`; with one unknown it is an equation left unsolved.
    return last if len(tree.symbols) > 1 or value is None or not value.decisive else None


def _is_product_of_symbols(tree: tuple) -> bool:
    return tree[0] == "sym" or (tree[0] in ("mul", "div") and all(_is_product_of_symbols(part) for part in tree[1:]))


def _difference(relation: Node) -> canonical.Form | None:
    if len(relation.items) != 2:
        return None
    left, right = (form(item.text) for item in relation.items)
    if left is None or right is None or "infty" in left.atoms | right.atoms:
        return None
    try:
        return left.plus(right, -1)
    except canonical.TooHard:
        return None


def proportional(a: Node, t: Node) -> bool | None:
    """Relations whose two sides differ by a constant factor are the same relation, turned over if it is negative."""
    left, right = _difference(a), _difference(t)
    if left is None or right is None or a.operators[0] not in _FLIPPED or t.operators[0] not in _FLIPPED:
        return None
    if len(left.bottom) > 1 or len(right.bottom) > 1:
        return None
    try:
        factor = canonical.ratio(left, right)
    except canonical.TooHard:
        return None
    operator, other = a.operators[0], t.operators[0]
    if factor is not None:
        return (operator if factor > 0 else _FLIPPED[operator]) == other
    symbols = left.atoms | right.atoms
    exact = left.decisive and right.decisive and not any("." in node.text for node in (a, t))
    linear = all(sum(e for _, e in mono) <= 1 for side in (left, right) for mono in side.top)
    if exact and linear and all(isinstance(s, str) and s not in ("i", "e", "pi") for s in symbols):
        return False
    return None


def interval(relation: Node) -> tuple[Node, Node] | None:
    """(the unknown, the interval it lies in) of a solved inequality such as `1 < x <= 2`."""
    operators, items = relation.operators, relation.items
    if not set(operators) <= ORDER or any(item.kind != "scalar" for item in items):
        return None
    if operators[0] in (">", r"\ge"):
        operators, items = tuple(_FLIPPED[op] for op in reversed(operators)), items[::-1]
    if not set(operators) <= {"<", r"\le"}:
        return None
    free = [bool(tree is None or tree.symbols - {"e", "pi", "infty"}) for tree in (parsed(i.text) for i in items)]
    if len(items) == 2 and free in ([True, False], [False, True]):
        name, bound = items if free[0] else items[::-1]
        low, high = (r"-\infty", bound.text) if free[0] else (bound.text, r"\infty")
        ends = ("(", ")" if operators[0] == "<" else "]") if free[0] else ("(" if operators[0] == "<" else "[", ")")
    elif len(items) == 3 and free == [False, True, False]:
        low, name, high = items[0].text, items[1], items[2].text
        ends = ("(" if operators[0] == "<" else "[", ")" if operators[1] == "<" else "]")
    else:
        return None
    if (match := _ABSOLUTE.fullmatch(name.text)) and low not in ("0", r"-\infty"):
        low_bound, high_bound = _bound(low), _bound(high)
        if low_bound is None or high_bound is None or not 0 < low_bound < high_bound:
            return None
        turned = ("(" if ends[1] == ")" else "["), (")" if ends[0] == "(" else "]")
        mirrored = f"{turned[0]}-({high}),-({low}){turned[1]}"
        mirrored = mirrored.replace(r"-(\infty)", r"-\infty")
        return Node("scalar", match[1]), build(rf"{mirrored}\cup{ends[0]}{low},{high}{ends[1]}")
    if not (NAME.fullmatch(name.text) or CALL.fullmatch(name.text)):
        return None
    text = f"{ends[0]}{low},{high}{ends[1]}"
    return name, Node("bracket", text, (Node("scalar", low), Node("scalar", high)), brackets="".join(ends))


def apart(pieces: tuple[Node, ...]) -> bool:
    """Whether these intervals and sets are the components of their union: real numbers, in no touch with each other."""
    spans = []
    for piece in pieces:
        if piece.kind == "bracket" and len(piece.items) != 2:
            return False
        bounds = [_bound(item.text) for item in piece.items]
        if None in bounds:
            return False
        spans += [(b, b) for b in bounds] if piece.kind == "set" else [tuple(bounds)]
    spans.sort()
    # A set's points are compared as one piece, so they must not be spread over the text.
    if sum(piece.kind == "set" for piece in pieces) > 1:
        return False
    return all(low <= high for low, high in spans) and all(a[1] < b[0] - 1e-9 for a, b in itertools.pairwise(spans))


def _bound(text: str) -> float | None:
    if text in (r"\infty", r"+\infty", r"-\infty"):
        return -math.inf if text[0] == "-" else math.inf
    tree = parsed(text)
    if tree is None or tree.symbols - {"e"}:
        return None
    try:
        value = numeric.value(tree.tree, {})
    except numeric.NoValue:
        return None
    return value.real if abs(value.imag) < 1e-12 else None
