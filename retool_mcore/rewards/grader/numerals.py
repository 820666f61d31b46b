"""Repeating decimals, and English number words as figures: cardinals beyond a million, `two and three quarters`."""

import re
from fractions import Fraction

from retool_mcore.rewards.grader import TABLES

_UNITS, _TEENS, _TENS = (TABLES["numerals"][name].split() for name in ("units", "teens", "tens"))
_VALUES = {word: n for n, word in enumerate(["zero", *_UNITS, *_TEENS])}
_VALUES |= {word: 10 * n for n, word in enumerate(_TENS, 2)}
_ORDINALS = {word: str(n) for n, word in enumerate(TABLES["numerals"]["ordinals"].split(), 1)}
_SCALES = TABLES["numerals"]["scales"]
_PARTS = TABLES["numerals"]["parts"] | {f"{word}s": n for word, n in TABLES["numerals"]["parts"].items()}


def _any(words) -> str:
    return f"(?:{'|'.join(words)})"


_BELOW_100 = rf"(?:{_any(_TENS)}(?: {_any(_UNITS)})?|{_any([*_TEENS, *_UNITS])})"
_BELOW_1000 = rf"(?:(?:{_BELOW_100}|a) hundred(?:(?: and)? {_BELOW_100})?|{_BELOW_100})"
_CARDINAL = (
    rf"(?:zero|(?:{_BELOW_1000}|a) million(?: (?:{_BELOW_1000}|a) thousand)?(?:(?: and)? {_BELOW_1000})?"
    rf"|(?:{_BELOW_1000}|a) thousand(?:(?: and)? {_BELOW_1000})?|{_BELOW_1000})"
)
_NUMBER = re.compile(
    rf"(?P<sign>minus |negative )?(?:(?P<whole>{_CARDINAL}) and )?(?P<top>{_CARDINAL}|a) (?P<bottom>{_any(_PARTS)})\b"
    rf"|(?P<minus>minus |negative )?(?P<cardinal>{_CARDINAL})\b"
)
REPEATING = re.compile(
    r"([0-9]{0,9})\.([0-9]{0,40}) ?(?:\\(?:overline|bar|dot)\{([0-9]{1,40})\}|\\(?:bar|dot) ?([0-9])|\(([0-9]{1,40})\))"
    r"(?:([0-9]{0,40})\\dot(?:\{([0-9])\}| ?([0-9])))?"
)
_WORDS_ONLY = re.compile(r"[A-Za-z][A-Za-z ,-]{2,120}\.?")


def _cardinal(words: str) -> int:
    total = current = 0
    for word in words.split():
        if word in _SCALES:
            current = (current or 1) * _SCALES[word]
            if word != "hundred":
                total, current = total + current, 0
        elif word not in ("and", "a"):
            current += _VALUES[word]
    return total + current


def numeral(text: str, opens: str, closes: str) -> str:
    r"""`twenty-one` as `21`, `two thirds` as `\frac{2}{3}`, `three hours` as `3` and a unit; any other text as it is.

    opens, closes: the characters around words in `text`.
    """
    plain = text.replace(opens, " ").replace(closes, " ").strip()
    if not _WORDS_ONLY.fullmatch(plain):
        return text
    words = re.sub(r"[ ,-]+", " ", plain.rstrip(".")).lower()
    if not (match := _NUMBER.match(words)):
        return _ORDINALS.get(words, text)
    if match["bottom"]:
        value = Fraction(1 if match["top"] == "a" else _cardinal(match["top"]), _PARTS[match["bottom"]])
        value += _cardinal(match["whole"]) if match["whole"] else 0
    else:
        value = Fraction(_cardinal(match["cardinal"]))
    sign = "-" if match["sign"] or match["minus"] else ""
    rest = words[match.end() :].strip()
    figure = str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return sign + figure + (f"{opens}{rest}{closes}" if rest else "")


def repeating(match: re.Match) -> Fraction | None:
    r"""The value of a match of REPEATING; None where dots stand anywhere but on the ends of the period.

    `0.1\overline{6}`, `0.1(6)`, `0.1\dot6`, `0.\dot{1}42\dot{8}`.
    """
    whole, fixed, *first, between, last, bare_last = match.groups()
    period = next(filter(None, first)) + (between or "") + (last or bare_last or "")
    if (last or bare_last) and r"\dot" not in match[0][: max(map(match.start, (3, 4, 5))) - match.start()]:
        return None
    scale = 10 ** len(fixed)
    return Fraction(int(whole + fixed or "0"), scale) + Fraction(int(period), scale * (10 ** len(period) - 1))
