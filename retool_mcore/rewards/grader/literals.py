"""Digits that are no plain number: other bases, codes of letters and digits, clock times, ratios."""

import re
from fractions import Fraction

from retool_mcore.rewards.grader.text import CLOSE_TEXT, OPEN_TEXT
from retool_mcore.rewards.grader.values import same_value

_BASED = re.compile(r"([+-]?)\(?([0-9A-Za-z]+)\)?_(?:\{([0-9]+)\}|([0-9]))")
_PREFIXED = re.compile(r"([+-]?)0(?:[xX]([0-9A-Fa-f]+)|[bB]([01]+)|[oO]([0-7]+))")
_CODE = re.compile(r"-?(?=[0-9A-Za-z]*?[A-Za-z][0-9])[0-9A-Za-z]{2,200}")
_SCIENTIFIC = re.compile(r"-?[0-9]+[eE][0-9]+")
_HEX = re.compile("-?[0-9A-Fa-f]+")
_TIME = re.compile(
    r"(?P<hours>[0-9]{1,3}):(?P<minutes>[0-5][0-9])(?::(?P<seconds>[0-5][0-9](?:\.[0-9]{1,9})?))?"
    rf"\s*{OPEN_TEXT}?\s*(?P<half>[AaPp])?\.?(?:[Mm]\.?)?{CLOSE_TEXT}?"
)


def _based(text: str) -> tuple[str, str, int] | None:
    """(sign, digits without leading zeros, base) of `0x1f`, `1F_{16}` and the like."""
    if match := _PREFIXED.fullmatch(text):
        base, digits = next((b, d) for b, d in zip((16, 2, 8), match.groups()[1:], strict=True) if d)
        return match[1].strip("+"), digits.lstrip("0").lower(), base
    if (match := _BASED.fullmatch(text)) and (match[2][0].isdigit() or not match[2].isalpha()):
        return match[1].strip("+"), match[2].lstrip("0").lower(), int(match[3] or match[4])
    return None


def same_digits(a: str, t: str) -> bool | None:
    """Whether answer `a` and truth `t` are the same; one has a base of its own, or both are codes.

    None where they are neither. A truth in base ten takes the value in any base; a truth in another base takes that
    base's digits alone, and not its value in base ten, which the question may have given.
    """
    left, right = _based(a), _based(t)
    if left and right:
        return left == right
    if right:
        if right[2] == 10:
            return same_value(a, "".join(right[:2]))
        return a.removeprefix("-").lstrip("0").lower() == right[1] and a.startswith("-") is (right[0] == "-")
    if left:
        try:
            return same_value(f"{left[0]}{int(left[1] or '0', left[2])}", t)
        except ValueError:
            return False
    if not (_CODE.fullmatch(a) and _CODE.fullmatch(t)) or _SCIENTIFIC.fullmatch(a) or _SCIENTIFIC.fullmatch(t):
        return None
    return bool(_HEX.fullmatch(t)) and a.casefold() == t.casefold()


def _seconds(time: re.Match) -> Fraction:
    return 60 * Fraction(time["minutes"]) + Fraction(time["seconds"] or 0)


def same_ratio(a: str, t: str) -> bool | None:
    """Whether two texts with colons are the same time of day or duration, or the same ratio."""
    ours, true = _TIME.fullmatch(a), _TIME.fullmatch(t)
    if ours and true:
        times = ours, true
        halves = [(m["half"] or "").lower() for m in times]
        hours = [int(m["hours"]) for m in times]
        if all(halves) or (any(halves) and hours[0] != hours[1]):
            hours = [h % 12 + 12 * (half == "p") if half else h for h, half in zip(hours, halves, strict=True)]
        parts = (ours["seconds"] is None) is (true["seconds"] is None)
        return parts and hours[0] == hours[1] and _seconds(ours) == _seconds(true)
    left, right = a.split(":"), t.split(":")
    if len(left) != len(right) or len(left) < 2:
        return None if 1 in (len(left), len(right)) else False
    verdict: bool | None = True
    zero = [same_value(part, "0") for part in (left[0], right[0])]
    if True in zero:  # a ratio to nothing tells no two apart
        return False
    for x, y in zip(left[1:], right[1:], strict=True):
        same = same_value(f"({x})*({right[0]})", f"({y})*({left[0]})")
        if same is False:
            return False
        verdict = verdict and same
    return verdict
