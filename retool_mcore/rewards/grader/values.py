"""Whether two expressions without units have the same value: exact forms first, then values at points."""

import re
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache

from retool_mcore.rewards.grader import canonical, numeric, pieces
from retool_mcore.rewards.grader.parse import Parsed, ParseError, parse

# Where decimals may stand for the exact value that they are a rounding of, they do from this many places on, with as
# many digits that count (math-verify rounds to 6 places too, and takes 0.000001 for 0.0000014).
ROUNDED_PLACES = 6
ROUNDED_DIGITS = 4

# Whether a decimal may stand for the exact value (a recipe's choice, `decimals`); one context a comparison.
ROUNDED: ContextVar[bool] = ContextVar("rounded", default=False)

_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?:\.[0-9]+)?")
# Names of a constant of integration in a truth, and in an answer.
_FREE = frozenset({"C", "K", "C_1", "C_0", "c"})
_FREE_NAMES = _FREE | {"k", "c_1", "c_0", "D"}
_ALONE = r"(?<![A-Za-z\\])[{}](?![A-Za-z])"


def ungrouped(text: str) -> str:
    return text.replace(",", "").replace(" ", "") if _GROUPED.fullmatch(text) else text


@lru_cache(maxsize=4096)
def parsed(text: str) -> Parsed | None:
    """The tree of `text`, None when it is not an expression."""
    try:
        return parse(ungrouped(text))
    except (ParseError, RecursionError):
        return None


def form(text: str) -> canonical.Form | None:
    """The canonical form of `text`, None when it has none within the limits."""
    expression = parsed(text)
    return None if expression is None else _form(expression.tree)


@lru_cache(maxsize=4096)
def _form(tree: tuple) -> canonical.Form | None:
    try:
        return canonical.canonical(tree)
    except (canonical.TooHard, RecursionError, ZeroDivisionError, OverflowError):
        return None


def _decimals(tree: tuple) -> int | None:
    """The most decimal places of any number in the tree; None when it holds no decimal."""
    if tree[0] == "num":
        return tree[2]
    places = [_decimals(part) for part in tree[1:] if isinstance(part, tuple)]
    return max((p for p in places if p is not None), default=None)


def _decimal_logs(tree: tuple) -> tuple:
    """The tree with the base 10 for every log without a base, which may also be e."""
    if tree[:2] == ("fn", "log") and len(tree) == 3:
        return ("fn", "lg", _decimal_logs(tree[2]))
    return tuple(_decimal_logs(part) if isinstance(part, tuple) else part for part in tree)


def _rounds_to(decimal: Fraction, places: int, exact) -> bool:
    """Whether `decimal`, written with so many places, is `exact` rounded or cut off there."""
    places = min(places, 12)  # more places are the noise of binary floats
    digits = len(str(abs(int(decimal * 10**places))).lstrip("0"))
    if not ROUNDED.get() or places < ROUNDED_PLACES or digits < ROUNDED_DIGITS:
        return False
    step = Fraction(1, 10**places)
    gap = abs(decimal - exact)
    noise = abs(exact) / 10**14
    return gap <= step / 2 + noise or (abs(decimal) <= abs(exact) and gap < step)


def _rounded(a: Parsed, b: Parsed, symbols: frozenset) -> bool | None:
    """Comparison of constants, one of them a decimal; the other may be exact, or a decimal of another length."""
    if symbols - {"pi", "e"}:
        return None
    try:
        values = [numeric.value(side.tree, {}, long=True) for side in (a, b)]
    except numeric.NoValue:
        return None
    if any(abs(v.imag) > 1e-40 for v in values):
        return None
    left, right = (Fraction(str(v.real)) if abs(v.real) < 10**30 else None for v in values)
    if left is None or right is None:
        return None
    if abs(left - right) <= abs(left) / 10**40:
        return True
    sides = [(left, _decimals(a.tree), right), (right, _decimals(b.tree), left)]
    return any(places is not None and _rounds_to(value, places, other) for value, places, other in sides)


def same_value(a: str, b: str) -> bool | None:
    """Whether two expressions without units are equal wherever both are defined."""
    if a == b:
        return True
    left, right = parsed(a), parsed(b)
    if left is None or right is None:
        return None
    for letters, name in (("jI", "i"), ("E", "e")):  # engineers write j for i, sympy I and E
        if name in right.symbols - left.symbols and set(letters) & (left.symbols - right.symbols):
            return same_value(re.sub(_ALONE.format(letters), name, a), b)
        if name in left.symbols - right.symbols and set(letters) & (right.symbols - left.symbols):
            return same_value(a, re.sub(_ALONE.format(letters), name, b))
    verdict = _same_trees(left, right)
    if verdict is not True and "+" in a and "+" in b and _same_family(left, right):
        return True
    if "log" not in a + b:
        return verdict
    one, other = (Parsed(_decimal_logs(side.tree), side.doubtful, side.symbols) for side in (left, right))
    if verdict is True or (one, other) == (left, right) or ("lg" in a and "lg" not in b):
        return verdict  # an answer in `lg` is no more than decimal
    # A bare log is natural or decimal, on both sides alike.
    return True if (decimal := _same_trees(one, other)) is True else verdict if verdict is decimal else None


def _terms(tree: tuple) -> list[tuple]:
    return [*_terms(tree[1]), *_terms(tree[2])] if tree[0] == "add" else [tree]


def _without_constant(side: Parsed, names: frozenset[str]) -> tuple[tuple, str] | None:
    """(tree without it, name) of the one free constant that is added to an expression; None where there is none."""
    terms = _terms(side.tree)
    free = [term for term in terms if term[0] == "sym" and term[1] in names]
    rest = [term for term in terms if term not in free]
    if len(free) != 1 or not rest:
        return None
    tree = rest[0]
    for term in rest[1:]:
        tree = ("add", tree, term)
    letters = pieces.letters(tree)
    return (tree, free[0][1]) if letters and free[0][1] not in letters else None


def _same_family(left: Parsed, right: Parsed) -> bool | None:
    """Antiderivatives: whether the sides differ by a constant, where each adds one that is free, of whatever name."""
    truth = _without_constant(right, _FREE)
    answer = truth and _without_constant(left, _FREE_NAMES)
    if not answer or not truth:
        return None
    letters, ours = pieces.letters(truth[0]), pieces.letters(answer[0])
    if not ours <= letters or any(not letter[0].islower() for letter in letters) or letters & {"a", "b"} == {"a", "b"}:
        return None
    verdict = _same_trees(
        *(
            Parsed(tree, side.doubtful, frozenset(pieces.letters(tree) | (side.symbols & pieces.CONSTANTS)))
            for (tree, _), side in ((answer, left), (truth, right))
        )
    )
    if verdict:
        return True
    first, second = _form(answer[0]), _form(truth[0])
    if first is not None and second is not None:
        try:
            rest = first.plus(second, -1).atoms
        except canonical.TooHard:
            return verdict
        if all(
            isinstance(atom, int) or atom in ("e", "pi") or (atom[0] == "ln" and isinstance(atom[1], int))
            for atom in rest
        ):
            return True
        if first.decisive and second.decisive:
            return False
    return numeric.differ_by_a_constant(answer[0], truth[0], frozenset(letters)) or verdict


def _same_trees(left: Parsed, right: Parsed) -> bool | None:
    first, second = _form(left.tree), _form(right.tree)
    doubtful = left.doubtful or right.doubtful
    places = [p for p in (_decimals(left.tree), _decimals(right.tree)) if p is not None]
    symbols = left.symbols | right.symbols
    if first is not None and second is not None:
        try:
            if first == second:  # letters times nothing may be words: `0 etc`
                only_one_has = (left.symbols ^ right.symbols) - {"pi", "e", "i", "infty"}
                return None if only_one_has and first == _form(("num", Fraction(0), None)) else True
        except canonical.TooHard:
            return None
        if ROUNDED.get() and places:
            if (verdict := _rounded(left, right, symbols)) is not None:
                return verdict
            if max(places) >= ROUNDED_PLACES - 1:
                return None
        if first.decisive and second.decisive:
            return None if doubtful else False
    elif places and (verdict := _rounded(left, right, symbols)) is not None:
        return verdict
    verdict = numeric.compare(left.tree, right.tree, symbols)
    return None if doubtful and not verdict else verdict
