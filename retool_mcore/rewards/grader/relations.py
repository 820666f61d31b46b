"""The meaning of a relation or an interval: the value it assigns, the interval it describes, its sides' difference."""

import math
import re

from retool_mcore.rewards.grader import canonical, numeric
from retool_mcore.rewards.grader.nodes import Node
from retool_mcore.rewards.grader.parse import Parsed
from retool_mcore.rewards.grader.scalar import same_scalar
from retool_mcore.rewards.grader.text import CLAIM_WORDS, CLOSE_TEXT, OPEN_TEXT, phrase
from retool_mcore.rewards.grader.units import split
from retool_mcore.rewards.grader.values import form, parsed

FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\ne": r"\ne", "=": "="}
ORDER = frozenset(["<", ">", r"\le", r"\ge"])
NAME = re.compile(r"[A-Za-z]\w*'*|\\[A-Za-z]+|[A-Za-z]_\{\w+\}'*")
CALL = re.compile(r"(\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\^\{-1\})?)\((.*)\)", re.DOTALL)


_DECIMAL = re.compile(r"\.[0-9]+")
_SAID = re.compile(r"(?<![\\A-Za-z])(?![A-Z]{2}(?![A-Za-z]))[A-Za-z]{2,}")  # `NO` is a line between two points
_INTEGRAL = re.compile(r"\\int(?![A-Za-z]).*[^A-Za-z]d ?(?:[a-z]|\\theta)", re.DOTALL)
_CAPITAL = re.compile(f"{OPEN_TEXT}?[A-Z]{CLOSE_TEXT}?")
# A left side that is no expression: names of points, figures and quantities, in letters, words, accents and indices.
_QUANTITY = re.compile(
    rf"(?:{OPEN_TEXT}[A-Za-z .]+{CLOSE_TEXT}|[A-Za-z]++|\\#"
    r"|\\(?:vec|bar|hat|widehat|overline|overrightarrow|angle|triangle|max|min|ell|mathbb|mathcal|circ)(?![A-Za-z])"
    r"|[ '|_{}(),\[\]]|\^\{?(?:-1|\\circ|\\prime|[0-9])\}?|(?<=[_A-Za-z{])[0-9]++)+"
)


def approximates(truth: str) -> bool:
    """Whether a truth is rounded itself, so that an answer may say "about"."""
    return truth.startswith(r"\approx") or bool(_DECIMAL.search(truth))


def member(node: Node, truth: Node | None = None) -> Node:
    r"""`x \in S` and `x \approx 5.2` as what follows; of `1/3 \approx 0.33` only the exact part.

    truth: where `node` is an answer, which says "about" of a value only where the truth is rounded.
    """
    if node.kind != "relation":
        return node
    if node.operators == (r"\in",):
        return node.items[1]
    if r"\approx" not in node.operators or (truth is not None and truth.kind == "relation"):
        return node
    at = node.operators.index(r"\approx")
    first, last = node.items[at], node.items[-1]
    exact = parsed(first.text)
    if exact is not None and not exact.symbols and len(node.operators) == at + 1:
        values = real_value(first.text), real_value(last.text)
        places = _DECIMAL.search(last.text)
        if None in values or not places or abs(values[0] - values[1]) >= 10.0 ** -(len(places[0]) - 1):
            return node
        return Node("relation", node.text, node.items[: at + 1], node.operators[:at]) if at else first
    return last if at == 0 and (truth is None or approximates(truth.text)) else node


def reduced(node: Node, modulus: Node) -> Node:
    """A residue, or a list of them, as the least representatives where they are integers."""
    forms = (form(side.text) for side in (node, modulus))
    value, base = (side.rational() if side is not None else None for side in forms)
    if node.kind in ("list", "set"):
        return Node("list", node.text, tuple(reduced(item, modulus) for item in node.items), join=",")
    if value is None or not base or value.denominator != 1 or base.denominator != 1:
        return node
    return Node("scalar", str(value % base))


def assigned(relation: Node, is_truth: bool) -> Node | None:
    """Return the value that an equation gives to its left side; None when the left side is no name but part of an
    equation to be solved."""
    left, last = relation.items[0], relation.items[-1]
    if left.kind not in ("scalar", "bracket") or last.kind == "relation" or (phrase(left.text) and phrase(last.text)):
        return None
    # `not x = 5`, `x = 6 instead of x = 5`, `D = C`: about the value, not its name.
    words = {word.lower() for item in relation.items[:-1] for word in _SAID.findall(item.text)}
    if words & CLAIM_WORDS or (_CAPITAL.fullmatch(left.text) and _CAPITAL.fullmatch(last.text)):
        return None
    numbers = [(item.text, parsed(split(item.text).number)) for item in relation.items[:-1]]
    expression = parsed(split(last.text).number)
    letters = expression.symbols if expression else frozenset("?")
    valued = [
        text
        for text, tree in numbers
        if tree
        and tree.tree[0] != "call"
        and text not in ("e", "i")  # an unknown may be called so
        and (tree.symbols <= {"e", "i"} or tree.symbols == letters != {text})
    ]
    verdicts = [same_scalar(text, last.text) for text in valued if last.kind == "scalar"]
    if False in verdicts:
        return None  # `5 = 6` and `2^n = n` give nothing its value
    if last.kind == "matrix" and _QUANTITY.fullmatch(left.text):
        return last
    if left.kind == "bracket":
        return last if all((tree := parsed(item.text)) and tree.tree[0] == "sym" for item in left.items) else None
    tree = parsed(left.text)
    if tree is None and _INTEGRAL.fullmatch(left.text):
        return last
    if tree is None:
        return last if _QUANTITY.fullmatch(left.text) else None
    if tree.tree[0] in ("sym", "call", "fn"):
        return last
    value = form(left.text)
    if not tree.symbols:
        known = value is not None and form(last.text) is not None
        return None if known and value != form(last.text) else last
    if _is_product_of_symbols(tree.tree):
        return last
    if is_truth:
        return None
    # An answer may repeat what was asked for, `m + n = 5`; with one unknown it is an equation left unsolved.
    return last if True in verdicts or _is_asked(tree, value, last) or value is None or not value.decisive else None


def _is_asked(side: Parsed, value: canonical.Form | None, right: Node) -> bool:
    """Whether a left side with several letters is a quantity that a question asks for, and no equation of a curve."""
    zero = form(right.text)
    if len(side.symbols) < 2 or value is None or set(value.bottom) != {canonical.ONE} or zero is None:
        return len(side.symbols) > 1 and value is None
    if zero.rational() == 0 or canonical.ONE in value.top:  # `3x+4y-1=0`
        return False
    bare = all(abs(factor) == 1 and {power for _, power in mono} == {1} for mono, factor in value.top.items())
    return bare or side.tree[0] in ("pow", "mul", "div") or not side.symbols <= set("xyz")


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
    if left is None or right is None or a.operators[0] not in FLIPPED or t.operators[0] not in FLIPPED:
        return None
    if len(left.bottom) > 1 or len(right.bottom) > 1:
        return None
    if a.operators == t.operators == ("=",):  # `y = 6/x` and `xy = 6`
        left, right = left.cleared(), right.cleared()
    try:
        factor = canonical.ratio(left, right)
    except canonical.TooHard:
        return None
    operator, other = a.operators[0], t.operators[0]
    if factor is not None:
        return (operator if factor > 0 else FLIPPED[operator]) == other
    symbols = left.atoms | right.atoms
    exact = left.decisive and right.decisive and not any("." in node.text for node in (a, t))
    linear = all(sum(e for _, e in mono) <= 1 for side in (left, right) for mono in side.top)
    plane = operator == other == "=" and all(len(side.atoms) > 1 for side in (left, right))
    if exact and (linear or plane) and all(isinstance(s, str) and s not in ("i", "e", "pi") for s in symbols):
        return False
    return None


def real_value(text: str) -> float | None:
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
