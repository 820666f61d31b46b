"""Whether two scalars are the same: numbers, expressions, quantities, words. True, False, or None for "not sure"."""

import re
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache

from retool_mcore.rewards.grader import TABLES, canonical, numeric, units
from retool_mcore.rewards.grader.parse import Parsed, ParseError, parse
from retool_mcore.rewards.grader.text import CLAIM_WORDS, CLOSE_TEXT, FORMS, OPEN_TEXT, phrase

# Where decimals may stand for the exact value that they are a rounding of, they do from this many places on, with as
# many digits that count (math-verify rounds to 6 places too, and takes 0.000001 for 0.0000014).
ROUNDED_PLACES = 6
ROUNDED_DIGITS = 4

# Whether a decimal may stand for the exact value (a recipe's choice, `decimals`); one context a comparison.
ROUNDED: ContextVar[bool] = ContextVar("rounded", default=False)

_GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?:\.[0-9]+)?")
_CHOICE = re.compile(
    rf"(?P<mark>(?:{OPEN_TEXT}?(?:[Oo]ption|[Cc]hoice|[Aa]nswer):?{CLOSE_TEXT}? ?)?[({OPEN_TEXT}]*)"
    rf"(?P<letter>[A-Za-z])(?P<end>[)\]{CLOSE_TEXT}]*[.:]?[)\]{CLOSE_TEXT}]*)"
)
_LETTERS = re.compile(rf"[({OPEN_TEXT}]*[A-J](?:(?:[,;() {OPEN_TEXT}{CLOSE_TEXT}]|and)*[A-J])+[){CLOSE_TEXT}]*")
# A letter that is only in bold may be a factor or a term: then no operator follows.
_TERM = rf"(?!{OPEN_TEXT}[A-H]{CLOSE_TEXT} ?(?:[+*/^_=]|\\(?:pm|mp|cdot|times)(?![a-z])))"
_LETTERED = rf"{_TERM}(?:{OPEN_TEXT}\(?([A-H])\)?[.:]?{CLOSE_TEXT}[.:)]?|\(([A-H])\)%s|([A-H])[.):] ?)\s*(?P<rest>.+)"
_CHOICE_AND = re.compile(_LETTERED % " ", re.DOTALL)
_CHOICE_BEFORE = re.compile(_LETTERED % "", re.DOTALL)  # where the other side is a letter: else `(A)x` is a product
# Behind a letter: choices that deny in words, and what is no content but says something about the letter.
_STOCK = re.compile("(?:none|all|any|neither|both) of |cannot be |not enough |no [a-z]+$")
_REMARK = re.compile(r"[A-H]$|[^+\-\w\\(\[{.$€£¥₹]|-[a-z]{2,}|\.\.|.*\?", re.DOTALL)
_DRAWN = frozenset(["", "vec", "hat", "angle", "triangle", "overrightarrow"])
_BASED = re.compile(r"\(?([0-9A-Fa-f]+)\)?_(?:\{([0-9]+)\}|([0-9]))")
_ALONE = r"(?<![A-Za-z\\])[{}](?![A-Za-z])"
_TIME = re.compile(rf"([0-9]{{1,2}}):([0-5][0-9])\s*{OPEN_TEXT}?\s*([AaPp])?\.?(?:[Mm]\.?)?{CLOSE_TEXT}?")
_SIGNS = {"no solution": (r"\emptyset", r"\{\}"), "infinitely many": (r"\infty",)}
_SAME_WORDS = {words: first for first, others in TABLES["same_words"].items() for words in others}


def _ungrouped(text: str) -> str:
    return text.replace(",", "").replace(" ", "") if _GROUPED.fullmatch(text) else text


@lru_cache(maxsize=4096)
def parsed(text: str) -> Parsed | None:
    """The tree of `text`, None when it is not an expression."""
    try:
        return parse(_ungrouped(text))
    except (ParseError, RecursionError):
        return None


def form(text: str) -> canonical.Form | None:
    """The canonical form of `text`, None when it has none within the limits."""
    found = parsed(text)
    return None if found is None else _form(found.tree)


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
    places = min(places, 12)  # beyond lies the noise of binary floats
    digits = len(str(abs(int(decimal * 10**places))).lstrip("0"))
    if not ROUNDED.get() or places < ROUNDED_PLACES or digits < ROUNDED_DIGITS:
        return False
    step = Fraction(1, 10**places)
    gap = abs(decimal - exact)
    noise = abs(exact) / 10**14
    return gap <= step / 2 + noise or (abs(decimal) <= abs(exact) and gap < step)


def _rounded(a: Parsed, b: Parsed, symbols: frozenset) -> bool | None:
    """Comparison of constants of which one is a decimal; the other may be exact, or a decimal of other length."""
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
    if "log" not in a + b:
        return verdict
    one, other = (Parsed(_decimal_logs(side.tree), side.doubtful, side.symbols) for side in (left, right))
    if verdict is True or (one, other) == (left, right) or ("lg" in a and "lg" not in b):
        return verdict  # an answer in `lg` is no more than decimal
    # A bare log is natural or decimal, on both sides alike.
    return True if (decimal := _same_trees(one, other)) is True else verdict if verdict is decimal else None


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
        if doubtful:
            return None
        if first.decisive and second.decisive:
            return False
    elif places and (verdict := _rounded(left, right, symbols)) is not None:
        return verdict
    verdict = numeric.compare(left.tree, right.tree, symbols)
    return None if doubtful and not verdict else verdict


def _scaled(text: str, factor: Fraction) -> str:
    return text if factor == 1 else rf"({text})*({factor.numerator})/({factor.denominator})"


def _same_quantity(a: units.Quantity, t: units.Quantity) -> bool | None:
    same = same_value(_ungrouped(a.number), _ungrouped(t.number))
    if a.kind == t.kind and a.kind != "unit":
        return same
    if a.kind == "unit" and t.kind == "unit":
        if t.unit.generic and not a.unit.counts(a.number):
            return False
        factor = units.same_unit(a.unit, t.unit)
        if factor is None:
            return False
        return same if factor == 1 else same_value(_scaled(a.number, factor), t.number)
    if a.kind == "unit" and not t.kind and not a.unit.counts(a.number):
        return False
    kinds = {a.kind, t.kind}
    if "percent" in kinds:
        if kinds != {"percent", ""}:
            return False if "degree" in kinds else None
        percent, plain = (a, t) if a.kind == "percent" else (t, a)
        as_value = same_value(_scaled(percent.number, Fraction(1, 100)), plain.number)
        if as_value is not False:
            return as_value
        # A question that asks for a percentage takes the bare number; a plain truth below 1 is a fraction.
        found = form(t.number)
        value = found.rational() if found is not None else None
        return False if t.kind == "" and value is not None and abs(value) < 1 else same
    if "degree" in kinds and same is not True:
        degrees, other = (a, t) if a.kind == "degree" else (t, a)
        in_radians = other.unit is not None and other.unit.dimensions == (("radian", 1),)
        if r"\pi" in other.number or in_radians:
            return same_value(rf"({degrees.number})*\pi/180", other.number)
        if other.kind == "unit" and not other.unit.generic:
            return False
    if "degree" in kinds and "unit" in kinds and not (a.unit or t.unit).generic:
        return False
    return same


def _is_content(text: str) -> bool:
    """Whether what stands behind a choice's letter is a value or words of its own, and no word about the choice."""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ").strip(" {}()").lower()
    if _STOCK.match(plain):
        return True
    said = re.findall(r"(?<![\\a-z])[a-z]{2,}", plain)
    bare = text.strip(OPEN_TEXT + CLOSE_TEXT + " {}()")
    command = re.match(r"\\(\\|[A-Za-z]*)", bare)
    known = command is None or command[1] in FORMS | _DRAWN
    return known and CLAIM_WORDS.isdisjoint(said) and not _REMARK.match(bare)


def choice(a: str, t: str) -> bool | None:
    """Multiple-choice letters, alone or before their content, or several of them."""
    if _LETTERS.fullmatch(a) and _LETTERS.fullmatch(t) and not (a.isalpha() and t.isalpha()):
        return sorted(re.findall("[A-J]", a)) == sorted(re.findall("[A-J]", t))
    left, right = _CHOICE.fullmatch(a), _CHOICE.fullmatch(t)
    if left and right:
        marked = left["mark"] or right["mark"] or left["end"] or right["end"]
        same = left["letter"].casefold() == right["letter"].casefold()
        return same and (bool(marked) or left["letter"] == right["letter"])
    long_left = (_CHOICE_BEFORE if right else _CHOICE_AND).fullmatch(a)
    long_right = (_CHOICE_BEFORE if left else _CHOICE_AND).fullmatch(t)
    if long_left and (right or long_right):
        letter = right["letter"] if right else next(filter(None, long_right.groups()))
        return _is_content(long_left["rest"]) and next(filter(None, long_left.groups())) == letter.upper()
    if long_left or (long_right and left):
        if long_right and left:
            return _is_content(long_right["rest"]) and next(filter(None, long_right.groups())) == left["letter"].upper()
        return same_scalar(long_left["rest"], t)
    return same_scalar(a, long_right["rest"]) if long_right else None


def _based(a: str, t: str) -> bool | None:
    left, right = _BASED.fullmatch(a), _BASED.fullmatch(t)
    if left and right:
        digits = [m[1].lstrip("0").lower() for m in (left, right)]
        return digits[0] == digits[1] and (left[2] or left[3]) == (right[2] or right[3])
    match, other = (left, t) if left else (right, a)
    if (match[2] or match[3]) == "10":
        return same_value(match[1], other)
    if left:  # another base than the truth's ten
        try:
            return same_value(str(int(match[1], int(match[2] or match[3]))), other)
        except ValueError:
            return False
    # Without its base the answer may be meant in it; the digits decide.
    return match[1].lstrip("0") == other.lstrip("0")


def _ratio(a: str, t: str) -> bool | None:
    times = _TIME.fullmatch(a), _TIME.fullmatch(t)
    if all(times):
        halves = [(m[3] or "").lower() for m in times]
        hours = [int(m[1]) for m in times]
        if all(halves) or (any(halves) and hours[0] != hours[1]):
            hours = [h % 12 + 12 * (half == "p") if half else h for h, half in zip(hours, halves, strict=True)]
        return hours[0] == hours[1] and times[0][2] == times[1][2]
    left, right = a.split(":"), t.split(":")
    if len(left) != len(right) or len(left) < 2:
        return None if 1 in (len(left), len(right)) else False
    verdict: bool | None = True
    for x, y in zip(left[1:], right[1:], strict=True):
        same = same_value(f"({x})*({right[0]})", f"({y})*({left[0]})")
        if same is False:
            return False
        verdict = verdict and same
    return verdict


def _words(a: str, t: str) -> bool | None:
    left, right = (side and re.sub(r"^(?:the|a|an) ", "", side) for side in (phrase(a), phrase(t)))
    if left is not None and right is not None:
        return _SAME_WORDS.get(left, left) == _SAME_WORDS.get(right, right)
    words, other = (left, t) if left is not None else (right, a)
    if signs := _SIGNS.get(_SAME_WORDS.get(words, words)):
        return other in signs
    value = form(other)
    return False if value is not None and value.rational() is not None else None


def same_scalar(a: str, t: str) -> bool | None:
    """Whether answer `a` and truth `t`, scalars in normal form, are the same; None when only algebra can tell."""
    a, t = a.strip(), t.strip()
    if not a or not t:
        return False
    if a == t:
        return True
    if (verdict := choice(a, t)) is not None:
        return verdict
    if _BASED.fullmatch(a) or _BASED.fullmatch(t):
        return _based(a, t)
    if ":" in a and ":" in t:
        return _ratio(a, t)
    left, right = units.split(a), units.split(t)
    if left.kind or right.kind:
        if left.kind == "unit" and not right.kind:
            right = units.split_letter(t) or right
        elif right.kind == "unit" and not left.kind:
            left = units.split_letter(a) or left
        return _same_quantity(left, right)
    sides = phrase(a), phrase(t)
    if any(sides) and (all(sides) or parsed(a) is None or parsed(t) is None):
        verdict = _words(a, t)
        # Letters in a row may also be a product, `xy` and `yx`.
        if verdict is not False or parsed(a) is None or parsed(t) is None or set(sides) & {"yes", "no"}:
            return verdict
    letters = units.split_letter(a), units.split_letter(t)
    if (letters[0] is None) != (letters[1] is None):
        # `5 m` or `5m^2` against `5`: metres. `5m` alone may be a product.
        both = list(zip(letters, (a, t), strict=True))
        spaced = all(side is None or re.search(r" [a-zA-Z]|\^", full) for side, full in both)
        number, true_number = (side.number if side else full for side, full in both)
        tree, true_tree = parsed(number), parsed(true_number)
        if spaced and tree and true_tree and not tree.symbols:
            return same_value(number, true_number)
        if tree and true_tree and tree.symbols and true_tree.symbols:
            return same_value(a, t)
        return True if same_value(a, t) else None
    return same_value(a, t)
