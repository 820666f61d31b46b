"""Equality of answers that needs no computer algebra: the same text, or two plain numbers.

Most answers of competition problems are integers; deciding them here costs microseconds instead of milliseconds.
"""

import re
from fractions import Fraction

# Ten times the longest answer of the known data sets; beyond it only identical text counts.
MAX_CHARS = 4096

_THOUSANDS_SPACE = re.compile(r"(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))|(?<=,)\\!")
_SPACING = re.compile(r"(?:\\[,;:! ]|~|\s)+")
_SIZING = re.compile(r"\\(?:left|right)(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*([0-9])\s*([0-9])(?![0-9])")
# A space between two word characters carries meaning (`3 1/2` is not `31/2`), every other one does not.
_IDLE_SPACE = re.compile(r"(?<![0-9A-Za-z]) | (?![0-9A-Za-z])")
_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+")

_DIGITS = r"[0-9]{1,100}"
_INTEGER = re.compile(rf"[+-]?{_DIGITS}")
_DECIMAL = re.compile(rf"[+-]?(?:{_DIGITS})?\.{_DIGITS}")
_RATIO = re.compile(rf"([+-]?)(?:\\frac\{{([+-]?{_DIGITS})\}}\{{([+-]?{_DIGITS})\}}|({_DIGITS})/({_DIGITS}))")


def normal_form(text: str) -> str:
    """`text` without what never changes an answer's meaning: dollar signs, quotes, idle spaces, sizing commands."""
    text = text.strip().strip("$").removeprefix(r"\(").removesuffix(r"\)").strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    text = text.replace("\u2212", "-").replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace("{,}", ",")
    text = _SPACING.sub(" ", _THOUSANDS_SPACE.sub("", _SIZING.sub("", text)))
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    return _IDLE_SPACE.sub("", text).removesuffix(".")


def rational(normal: str) -> tuple[Fraction, bool] | None:
    """Value of a plain number in normal form, and whether it is written exactly (a decimal may be rounded).

    None unless the text is an integer, a decimal or a fraction. Commas count as thousands separators where they
    stand in the right places.
    """
    if _GROUPED.fullmatch(normal.lstrip("+-")):
        normal = normal.replace(",", "")
    if _INTEGER.fullmatch(normal):
        return Fraction(int(normal)), True
    if _DECIMAL.fullmatch(normal):
        return Fraction(normal), False
    if ratio := _RATIO.fullmatch(normal):
        sign, top, bottom = ratio[1], int(ratio[2] or ratio[4]), int(ratio[3] or ratio[5])
        if bottom:
            return Fraction(top, bottom) * (-1 if sign == "-" else 1), True
    return None


def decide(answer: str, truth: str) -> bool | None:
    """Whether the two are equal, or None when that takes algebra.

    Equal text or equal numbers: True. Two different exactly written numbers, an empty side, or different texts of which
    one is longer than MAX_CHARS: False. Different numbers of which one is a decimal are left open, because 0.333333
    may stand for 1/3.
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
    if left == right:
        return True
    first, second = rational(left), rational(right)
    if first is None or second is None:
        return None
    if first[0] == second[0]:
        return True
    return False if first[1] and second[1] else None
