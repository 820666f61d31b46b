"""Whether a claimed output is the real one but for its formatting, and which claimed values the text relies on."""

import math
import re
from collections.abc import Sequence

_TOKEN = re.compile(
    r"(?P<number>[+-]?(?:\d[\d_]*+\.?\d*+|\.\d+)(?:[eE][+-]?\d+)?)|(?P<word>[^\W\d]+)|(?P<sign>[^\w\s'\"])"
)
# Without braces or colons inside: neither a dictionary nor a set of sets.
_SET = re.compile(r"\{([^{}:]*)\}")
_FLAG = re.compile(r"\b(?:True|False|None)\b")
# A minus after a letter, digit or bracket is a difference.
_SIGNED = re.compile(r"(?<![\w.)\]}])-?\d+(?:\.\d+)?")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
# Compared as what they are; a longer number is compared as text, digit by digit.
_MAX_DIGITS = 300


def agree(claimed: str, real: str) -> bool:
    """Whether both say the same: white space, quotes, separators of thousands, the order of a set's elements and digits
    of rounding aside.

    A claimed decimal may be the real one rounded to its own number of decimals; whole numbers must be equal.
    """
    return any(_alike(form(claimed), form(real)) for form in (str, _plain))


def _plain(text: str) -> str:
    """Without separators of thousands, and with the elements of a set in alphabetical order."""
    return _SET.sub(_ordered, _THOUSANDS.sub("", text.replace('"', "'")))


def _ordered(found: re.Match) -> str:
    return "{" + ", ".join(sorted(re.split(r",\s*", found[1]))) + "}"


def _alike(claimed: str, real: str) -> bool:
    a, b = list(_TOKEN.finditer(claimed)), list(_TOKEN.finditer(real))
    return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))


def _same(claimed: re.Match, real: re.Match) -> bool:
    if claimed[0] == real[0]:
        return True
    if claimed.lastgroup != "number" or real.lastgroup != "number":
        return False
    return same_number(claimed[0], real[0])


def same_number(claimed: str, real: str) -> bool:
    """Whether the number `claimed` is `real`, perhaps rounded to fewer decimals."""
    if max(len(claimed), len(real)) > _MAX_DIGITS:
        return claimed == real
    whole = all(text.lstrip("+-").replace("_", "").isdigit() for text in (claimed, real))
    if whole:
        return int(claimed) == int(real)
    a, b = float(claimed), float(real)
    decimals = len(claimed.partition(".")[2]) if "e" not in claimed.lower() else 0
    # A whole number is never the rounding of another: 3 for 2.7 is an error, not a format.
    slack = 0.5 * 10.0**-decimals * (1 + 1e-9) if decimals else 0.0
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) or abs(a - b) <= slack


def numbers(text: str) -> set[str]:
    """The numbers in a text without signs, and also without separators of thousands (`12,345` or `12{,}345`)."""
    texts = (text, _THOUSANDS.sub("", text))
    return {
        match[0].lstrip("+-").rstrip(".") for t in texts for match in _TOKEN.finditer(t) if match.lastgroup == "number"
    }


def stale(claimed: str, real: str, before: Sequence[str], after: str) -> list[str]:
    """Numbers (perhaps rounded, or of the other sign) and the words True, False and None in the text after a claimed
    output that it had, and nothing else has: not the real output, nor what stands before it."""
    known = numbers(real).union(*map(numbers, before))
    invented = {number for number in numbers(claimed) if not _among(number, known)}
    flags = set(_FLAG.findall(claimed)).difference(_FLAG.findall(real)).intersection(_FLAG.findall(after))
    return sorted(flags | _flipped(claimed, real, before, after)) + sorted(
        n for n in numbers(after) if _among(n, invented) and not _among(n, known)
    )


def _flipped(claimed: str, real: str, before: Sequence[str], after: str) -> set[str]:
    said, true, used = (set(_SIGNED.findall(text)) for text in (claimed, real, after))
    known = true.union(*map(_SIGNED.findall, before))
    wrong = {number for number in said - known if _negative(number) in true}
    return {number for number in wrong & used if _negative(number) not in used}


def _negative(number: str) -> str:
    return number[1:] if number.startswith("-") else f"-{number}"


def _among(number: str, others: set[str]) -> bool:
    if number in others:
        return True
    # Only a decimal can be the rounding of another number.
    return "." in number and any(same_number(number, other) for other in others if "." in other)
