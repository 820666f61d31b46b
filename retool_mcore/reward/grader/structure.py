"""Whether two structured answers are the same; scalars go to `scalar`, and what stays open to a leaf comparison.

Three-valued throughout: None means that it takes algebra. The same code runs in front, where the leaf comparison knows
nothing, and in the worker, where it is math-verify.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable

from retool_mcore.reward.grader import canonical, numeric
from retool_mcore.reward.grader.nodes import Node, Unreadable, build
from retool_mcore.reward.grader.scalar import form, parsed, same_scalar
from retool_mcore.reward.grader.text import MAX_CHARS, normal_form, phrase

# (answer, truth), both in normal form -> verdict
Leaf = Callable[[str, str], bool | None]

_GROUPED = re.compile(r"[+-]?[$€£¥₹]? ?[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:\.[0-9]+)?(?![0-9,]).{0,40}", re.DOTALL)
_COMMA = re.compile(r"([+-]?[0-9]+),([0-9]+)")
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne", "=": "="}
_ORDER = frozenset(["<", ">", r"\le", r"\ge"])
_NAME = re.compile(r"[A-Za-z]\w*'*|\\[A-Za-z]+|[A-Za-z]_\{\w+\}'*")
_CALL = re.compile(r"(\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{-1\})?)\((.*)\)", re.DOTALL)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    result: bool | None = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def _open(_answer: str, _truth: str) -> None:
    return None


class Comparison:
    """One comparison of an answer with a truth, with a given leaf comparison."""

    def __init__(self, leaf: Leaf = _open):
        self.leaf = leaf

    def texts(self, answer: str, truth: str) -> bool | None:
        """The verdict on two normal forms."""
        if answer == truth:
            return True
        # A comma between digits may group thousands, set off decimals, or separate two numbers.
        for text, other, swap in ((answer, truth, False), (truth, answer, True)):
            bare = self._is_scalar(other)
            if _GROUPED.fullmatch(text) and bare:
                verdict = same_scalar(other, text) if swap else same_scalar(text, other)
                if verdict is not None:
                    return verdict
            if (match := _COMMA.fullmatch(text)) and bare and "." in other:
                return same_scalar(f"{match[1]}.{match[2]}", other)
        if _GROUPED.fullmatch(answer) and _GROUPED.fullmatch(truth) and same_scalar(answer, truth):
            return True
        if phrase(answer) is not None and phrase(truth) is not None:
            return same_scalar(answer, truth)
        try:
            left, right = build(answer), build(truth)
        except Unreadable:
            return self.leaf(answer, truth)
        return self.nodes(left, right)

    def _is_scalar(self, text: str) -> bool:
        try:
            return "," not in text and build(text).kind == "scalar"
        except Unreadable:
            return False

    def nodes(self, a: Node, t: Node) -> bool | None:
        if a.text == t.text:
            return True
        a, t = _member(a), _member(t)
        if a.kind == "relation" or t.kind == "relation":
            return self._relations(a, t)
        if a.kind == t.kind == "scalar":
            verdict = same_scalar(a.text, t.text)
            return self.leaf(a.text, t.text) if verdict is None else verdict
        pair = {a.kind, t.kind}
        if "matrix" in pair or "determinant" in pair:
            return self._matrices(a, t)
        if "union" in pair:
            return self._unions(a, t)
        if "scalar" in pair:
            return self._with_scalar(a, t)
        return self._sequences(a, t)

    def _with_scalar(self, a: Node, t: Node) -> bool | None:
        scalar, other = (a, t) if a.kind == "scalar" else (t, a)
        plain = scalar.text
        if other.kind in ("set", "list") and len(other.items) == 1:
            return self.nodes(*((a, t.items[0]) if a is scalar else (a.items[0], t)))
        if other.kind == "bracket" and len(other.items) == 1:
            return same_scalar(*((plain, other.items[0].text) if a is scalar else (other.items[0].text, plain)))
        if parsed(plain) is not None or phrase(plain) is not None or plain == r"\emptyset":
            return False
        # Units after a list, "4, 5 cm", or something unknown.
        return self.leaf(a.text, t.text)

    def _sequences(self, a: Node, t: Node) -> bool | None:
        kinds = {a.kind, t.kind}
        if kinds == {"bracket"}:
            return a.brackets == t.brackets and self._ordered(a.items, t.items)
        if kinds == {"set", "bracket"}:
            return False
        if kinds == {"list", "bracket"}:
            bracket, other = (a, t) if a.kind == "bracket" else (t, a)
            if bracket.brackets == "()" or (bracket.brackets == "[]" and len(bracket.items) > 2):
                return self._ordered(_values(a), _values(t))
            # A truth of two values in square brackets may have been an interval.
            return False if len(bracket.items) == 2 or len(bracket.items) != len(other.items) else None
        if kinds == {"list"} and (_inequalities(a) or _inequalities(t)):
            return self._conditions(a, t)
        if "list" in kinds and self._order_counts(a, t):
            return self._ordered(_values(a), _values(t))
        return self._unordered(_distinct(a), _distinct(t))

    def _order_counts(self, a: Node, t: Node) -> bool:
        """Names on one side only: `x = 1, y = 2` is `1, 2` and not `2, 1`. Roots of one name come in any order."""
        names = [[_name(item) for item in side.items] for side in (a, t)]
        named = [sum(name is not None for name in side) for side in names]
        if not any(named) or all(n == len(side) for n, side in zip(named, names, strict=True)):
            return False
        full = names[0] if named[0] else names[1]
        return None not in full and len({name.split("_")[0] for name in full}) == len(full)

    def _ordered(self, a: tuple[Node, ...], t: tuple[Node, ...]) -> bool | None:
        if len(a) != len(t):
            return False
        return _all(self.nodes(x, y) for x, y in zip(a, t, strict=True))

    def _unordered(self, a: tuple[Node, ...], t: tuple[Node, ...]) -> bool | None:
        if len(a) != len(t):
            return False
        left_over, rest = [], list(t)
        for item in a:
            partner = next((n for n, other in enumerate(rest) if item.text == other.text), None)
            if partner is None:
                left_over.append(item)
            else:
                rest.pop(partner)
        open_rows = []
        for item in left_over:
            verdicts = []
            for n, other in enumerate(rest):
                verdicts.append(self.nodes(item, other))
                if verdicts[-1]:
                    rest.pop(n)
                    break
            else:
                if None not in verdicts:
                    return False
                open_rows.append(item)
        return None if open_rows else True

    def _matrices(self, a: Node, t: Node) -> bool | None:
        if a.kind == t.kind:
            if [len(row.items) for row in a.items] != [len(row.items) for row in t.items]:
                return False if a.kind == "matrix" else None
            verdict = _all(self._ordered(x.items, y.items) for x, y in zip(a.items, t.items, strict=True))
            return verdict if a.kind == "matrix" or verdict else self.leaf(a.text, t.text)
        matrix, other = (a, t) if a.kind == "matrix" else (t, a)
        if matrix.kind == "matrix" and other.kind == "bracket" and other.brackets in ("()", "[]"):
            flat = tuple(cell for row in matrix.items for cell in row.items)
            if 1 in (len(matrix.items), len(matrix.items[0].items)) and len(flat) == len(other.items):
                return self._ordered(flat, other.items)
            return False
        return False if other.kind in ("list", "set", "bracket", "union") else self.leaf(a.text, t.text)

    def _unions(self, a: Node, t: Node) -> bool | None:
        left = a.items if a.kind == "union" else (a,)
        right = t.items if t.kind == "union" else (t,)
        if all(n.kind in ("bracket", "set") for n in (*left, *right)):
            if _apart(left) and _apart(right):
                return self._unordered(left, right)
            # Pieces that touch may be written as one; pieces that are the same one by one are equal in any case.
            if len(left) == len(right) and self._unordered(left, right):
                return True
            return self.leaf(a.text, t.text)
        if any(node.kind in ("list", "relation") for node in (a, t)):
            return False
        return self.leaf(a.text, t.text)

    # Relations

    def _relations(self, a: Node, t: Node) -> bool | None:
        if a.kind == t.kind == "relation":
            return self._two_relations(a, t)
        relation, other = (a, t) if a.kind == "relation" else (t, a)
        if set(relation.operators) == {"="}:
            value = _value(relation, is_truth=relation is t)
            if value is None:
                return False
            return self.nodes(value, other) if relation is a else self.nodes(other, value)
        interval = _interval(relation)
        if interval is not None and other.kind in ("bracket", "union"):
            return self.nodes(interval[1], other) if relation is a else self.nodes(other, interval[1])
        if other.kind in ("scalar", "list", "set"):
            # `5` for `x > 5`: no. A scalar that is no expression may be a condition in words.
            return False if other.kind != "scalar" or parsed(other.text) is not None else self.leaf(a.text, t.text)
        return self.leaf(a.text, t.text)

    def _two_relations(self, a: Node, t: Node) -> bool | None:
        if (verdict := _proportional(a, t)) is not None:
            return verdict
        if a.operators == t.operators and len(a.operators) > 1 and set(a.operators) != {"="}:
            verdict = self._ordered(a.items, t.items)
            if verdict is not None and _interval(a) is None:
                return verdict
        intervals = _interval(a), _interval(t)
        if all(intervals):
            same_name = self.nodes(intervals[0][0], intervals[1][0])
            return _all([same_name, self.nodes(intervals[0][1], intervals[1][1])])
        if set(a.operators) == set(t.operators) == {"="}:
            values = _value(a, is_truth=True), _value(t, is_truth=True)
            if all(values):
                return self._assignments(a, t, *values)
        return self.leaf(a.text, t.text)

    def _assignments(self, a: Node, t: Node, value: Node, true_value: Node) -> bool | None:
        left, right = a.items[0].text, t.items[0].text
        same = self.nodes(value, true_value)
        if left == right or (same is not False and self.nodes(a.items[0], t.items[0])):
            return same
        calls = _CALL.fullmatch(left), _CALL.fullmatch(right)
        if all(calls) and calls[0][1] == calls[1][1]:
            free = [parsed(v.text) for v in (value, true_value)]
            return same if all(p is not None and not p.symbols for p in free) else self.leaf(a.text, t.text)
        if any(calls) or same is False:
            return False if same is False else self.leaf(a.text, t.text)
        return False if _NAME.fullmatch(left) and _NAME.fullmatch(right) else self.leaf(a.text, t.text)

    def _conditions(self, a: Node, t: Node) -> bool | None:
        """Inequalities joined by "or" are a union, "and" an intersection."""
        if (a.join == "or") != (t.join == "or"):
            return False
        return self._unordered(a.items, t.items)


def _apart(pieces: tuple[Node, ...]) -> bool:
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


def _member(node: Node) -> Node:
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


def _values(node: Node) -> tuple[Node, ...]:
    return tuple(
        (_value(item, is_truth=True) or item) if item.kind == "relation" and set(item.operators) == {"="} else item
        for item in node.items
    )


def _distinct(node: Node) -> tuple[Node, ...]:
    items = node.items
    if node.kind == "set":
        items = tuple({item.text: item for item in items}.values())
    return tuple(_group(item) for item in items)


def _group(node: Node) -> Node:
    """`p = 5, q = 2` inside a list of such groups is the pair (5, 2)."""
    if node.kind == "list" and all(_name(item) for item in node.items):
        return Node("bracket", node.text, _values(node), brackets="()")
    return node


def _inequalities(node: Node) -> bool:
    return any(item.kind == "relation" and set(item.operators) & _ORDER for item in node.items)


def _name(node: Node) -> str | None:
    if node.kind == "relation" and set(node.operators) == {"="} and _value(node, is_truth=True) is not None:
        return node.items[0].text
    return None


def _value(relation: Node, is_truth: bool) -> Node | None:
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


def _proportional(a: Node, t: Node) -> bool | None:
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


def _interval(relation: Node) -> tuple[Node, Node] | None:
    """(the unknown, the interval it lies in) of a solved inequality such as `1 < x <= 2`."""
    operators, items = relation.operators, relation.items
    if not set(operators) <= _ORDER or any(item.kind != "scalar" for item in items):
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
    if not (_NAME.fullmatch(name.text) or _CALL.fullmatch(name.text)):
        return None
    text = f"{ends[0]}{low},{high}{ends[1]}"
    return name, Node("bracket", text, (Node("scalar", low), Node("scalar", high)), brackets="".join(ends))


def decide(answer: str, truth: str, leaf: Leaf = _open) -> bool | None:
    """Whether `answer` means the same as `truth`; None when `leaf` left open what matters.

    Equal texts are equal, an empty side is not, and different texts of which one is longer than MAX_CHARS are not.
    """
    if not answer.strip() or not truth.strip():
        return False
    if answer == truth:
        return True
    if max(len(answer), len(truth)) > MAX_CHARS:
        return False
    left, right = normal_form(answer), normal_form(truth)
    if not left or not right:
        return False
    return Comparison(leaf).texts(left, right)
