"""Splitting a quantity into number and unit, and comparing units."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction

from retool_mcore.rewards.grader import TABLES
from retool_mcore.rewards.grader.text import CLAIM_WORDS, CLOSE_TEXT, FUNCTION_NAMES, OPEN_TEXT

# name: (dimension, power, size)
_TABLE: dict[str, tuple[str, int, Fraction]] = {
    name: (dimension.rpartition(" ")[0], int(dimension[-1]), Fraction(size))
    for dimension, units in TABLES["units"].items()
    for names, size in units.items()
    for name in names.split()
}

# Words that name no unit of their own.
_GENERIC = frozenset(["unit", "units", "square", "sq", "cubic", "in", "total", "of", "the", "each", "old", "them"])
_NOT_UNITS = FUNCTION_NAMES | CLAIM_WORDS
_PLURALS = frozenset(TABLES["plurals"].split())
_NUMBER_END = r"(?<=[0-9}).\])])"
_MARKED = re.compile(
    rf"((?:\s*/?\s*(?:\\cdot)?{OPEN_TEXT}[^{CLOSE_TEXT}]*{CLOSE_TEXT}(?:\^(?:\{{-?[0-9]\}}|-?[0-9]))?)+)(?:s)?$"
)
_PLAIN = re.compile(
    rf"{_NUMBER_END}\s*((?:[A-Za-z]{{2,}}+\.?(?:\^\{{?[0-9]\}}?)?[ /]?|[A-Za-z]/|(?<=/)[A-Za-z](?:\^\{{?[0-9]\}}?)?)+)$"
)
_POWERS = re.compile(
    rf"{_NUMBER_END}[ {{]*((?:[A-Za-z]{{1,3}}(?:\^\{{?-?[0-9]\}}?)? )+[A-Za-z]{{1,3}}\^\{{-[0-9]\}})\}}?$"
)
_PART = re.compile(r"(?<![0-9.])([0-9]{1,12}(?:\.[0-9]{1,12})?) *([A-Za-z]+)(?: and(?= ))?(?![A-Za-z])")
_LETTER = re.compile(rf"(?:{_NUMBER_END}|(?<=\\pi))\s*([mgshlLJNWV])(\^\{{?[23]\}}?)?$")
_PERCENT = re.compile(rf"(?:%|{OPEN_TEXT}?\s*(?:percent|percentage|pct|%)\s*{CLOSE_TEXT}?)$", re.IGNORECASE)
_DEGREE = re.compile(
    rf"(?:\^\{{?\\circ\}}?|\\circ|{OPEN_TEXT}?\s*(?:degrees?|deg)\s*{CLOSE_TEXT}?)$",
    re.IGNORECASE,
)
_TEMPERATURE = re.compile(
    rf"(?:(?:(?:\^\{{?\\circ\}}?|\\circ|{OPEN_TEXT}?\s*(?:degrees?|deg)\b\s*{CLOSE_TEXT}?)"
    rf"\s*{OPEN_TEXT}?\s*([CFK])"
    rf"|(?:\^\{{?\\circ\}}?|\\circ)?\s*{OPEN_TEXT}?\s*(?:degrees?|deg)?\s*{CLOSE_TEXT}?\s*{OPEN_TEXT}?\s*"
    rf"((?i:celsius|centigrade|fahrenheit|kelvins?)))\s*|\s*{OPEN_TEXT}\s*(K)\s*){CLOSE_TEXT}?$"
)
# Kelvin of a degree, and of 0 degrees.
SCALES = {"C": ("1", "273.15"), "F": ("5/9", "459.67*5/9"), "K": ("1", "0")}
_FUNCTION = re.compile(r"(?:sin|cos|tan|cot|sec|csc|cis)(?![a-z])")
_CURRENCY_FRONT = re.compile(r"^([+-]?)\s*([$€£¥₹])\s*(?=[0-9.\\({+-])")
_CURRENCY_BACK = re.compile(rf"{_NUMBER_END}\s*([$€£¥₹¢])$")


@dataclass(frozen=True)
class Unit:
    """A unit, a noun that is counted, or both (`grams of salt`).

    dimensions: sorted (name, power), () for a noun such as apples. scale: in base units. words: of the noun.
    """

    dimensions: tuple = ()
    scale: Fraction = Fraction(1)
    words: frozenset = frozenset()
    head: str = ""

    @property
    def generic(self) -> bool:
        return not self.dimensions and not self.words

    def counts(self, number: str) -> bool:
        """Whether so many of them can be meant: a unit, or a noun in the plural. `5 lie` counts nothing."""
        return (
            bool(self.dimensions)
            or not self.words
            or number == "1"
            or self.head in _PLURALS
            or bool(re.search("[^sui]s$", self.head))
        )


@dataclass(frozen=True)
class Quantity:
    """number: text without its unit. kind: "", "percent", "degree", "temperature" or "unit". scale: "C", "F" or "K"."""

    number: str
    kind: str = ""
    unit: Unit | None = None
    scale: str = ""


def _lookup(name: str) -> tuple[str, int, Fraction] | None:
    forms = name, name.lower(), name.lower().removesuffix("s"), name.lower().removesuffix("es")
    return next((_TABLE[form] for form in forms if form in _TABLE and (len(form) > 1 or form == name)), None)


def parse_unit(text: str) -> Unit | None:
    """The unit that a phrase such as `square feet`, `km/h` or `apples` names; None when it names none."""
    plain = re.sub(r"[\x02\x03{}]", " ", text).replace("\\cdot", " ").replace("per ", "/")
    plain = re.sub(r"^\s*\((.*)\)\s*$", r"\1", plain)
    if re.search(r"[^A-Za-z0-9$€£¥₹¢./^\s-]", plain):
        return None
    plain = {"mph": "mile/hour", "kmh": "km/h", "kph": "km/h"}.get(plain.strip().lower(), plain)
    dims: dict[str, int] = {}
    scale, nouns = Fraction(1), []
    for n, part in enumerate(plain.split("/")):
        prefix = 1
        for word in re.findall(r"([A-Za-z$€£¥₹¢]+)\.?\s*(?:\^\s*(-?[0-9]))?", part):
            name, power = word[0], int(word[1] or 1)
            if name in ("square", "sq"):
                prefix = 2
            elif name in ("cubic", "cu"):
                prefix = 3
            elif entry := _lookup(name):
                total = entry[1] * power * prefix * (-1 if n else 1)
                dims[entry[0]] = dims.get(entry[0], 0) + total
                scale *= entry[2] ** (power * prefix * (-1 if n else 1))
                prefix = 1
            elif name.lower() in _NOT_UNITS:
                return None
            elif name.lower() not in _GENERIC:
                nouns.append(name.lower())
    measure, _, stuff = plain.strip().partition(" of ")
    if dims and nouns and stuff and "/" not in stuff and (unit := parse_unit(measure)) and unit.dimensions:
        return replace(unit, words=frozenset(noun.removesuffix("s") for noun in nouns))  # "5 grams of salt"
    if nouns:  # "5 mile runs" is a noun phrase, whatever else it holds
        head = re.split(r" (?:of|in|per|each) |/", plain.lower().strip())[0].split()[-1].strip(".")
        return Unit(words=frozenset(noun.removesuffix("s") for noun in nouns), head=head)
    if dims:
        return Unit(tuple(sorted((k, v) for k, v in dims.items() if v)), scale)
    return Unit() if re.search("[A-Za-z]", plain) else None


def split(text: str) -> Quantity:
    """Number and unit of a scalar in normal form; kind "" when there is no unit."""
    if match := _CURRENCY_FRONT.match(text):
        rest = split(match[1] + text[match.end() :])
        if rest.kind in ("", "unit"):
            return Quantity(rest.number, "unit", rest.unit or parse_unit(match[2]))
    if match := _CURRENCY_BACK.search(text):
        return Quantity(text[: match.start()], "unit", parse_unit(match[1]))
    if (match := _TEMPERATURE.search(text)) and match.start() and re.search(r"[0-9})\]] *$", text[: match.start()]):
        scale = {"c": "C", "f": "F", "k": "K"}[next(filter(None, match.groups()))[0].lower()]
        return Quantity(text[: match.start()].rstrip(), "temperature", scale=scale)
    for pattern, kind in ((_PERCENT, "percent"), (_DEGREE, "degree")):
        if (match := pattern.search(text)) and match.start() and not _FUNCTION.search(text):
            return Quantity(text[: match.start()].rstrip(), kind)
    if (match := _MARKED.search(text)) and match.start():
        words = match[1].replace(OPEN_TEXT, "").replace(CLOSE_TEXT, "").strip()
        after_number = re.search(r"(?:[0-9})\]]|\\pi)\s*$", text[: match.start()])
        if (unit := parse_unit(words)) and (after_number or unit.dimensions):
            return Quantity(text[: match.start()].rstrip(), "unit", unit)
    if (match := _POWERS.search(text)) and (unit := parse_unit(match[1])) and unit.dimensions:  # m s^{-2}
        return Quantity(text[: match.start()].rstrip(), "unit", unit)
    if match := _PLAIN.search(text):
        unit = parse_unit(match[1])
        long_words = all(len(word) > 2 or word in _GENERIC for word in re.findall("[A-Za-z]+", match[1]))
        if unit and (unit.dimensions or (long_words and not text[match.start() - 1].isalpha() and " " in text)):
            return Quantity(text[: match.start()].rstrip(), "unit", unit)
    return Quantity(text)


def joined(text: str) -> str:
    """`2 hours 30 minutes`, a normal form, as so many of the smallest unit; any other text as it is."""
    plain = text.replace(OPEN_TEXT, " ").replace(CLOSE_TEXT, " ").strip(" ")
    parts = _PART.findall(plain)
    units = [_lookup(name) for _, name in parts]
    if len(parts) < 2 or None in units or _PART.sub("", plain).strip(" ") or len({unit[:2] for unit in units}) > 1:
        return text
    sizes = [unit[2] for unit in units]
    if sizes != sorted(set(sizes), reverse=True):
        return text
    total = sum(Fraction(number) * size for (number, _), size in zip(parts, sizes, strict=True)) / sizes[-1]
    return rf"\frac{{{total.numerator}}}{{{total.denominator}}}{OPEN_TEXT}{parts[-1][1]}{CLOSE_TEXT}"


def split_letter(text: str) -> Quantity | None:
    """Split like `split` for `5 m`, which may also be a product; None when it does not look so."""
    match = _LETTER.search(text)
    if not match:
        return None
    return Quantity(text[: match.start()].rstrip(), "unit", parse_unit(match[1] + (match[2] or "")))


def same_unit(a: Unit, b: Unit) -> Fraction | None:
    """The factor from a's numbers to b's; None when the two measure different things."""
    if a.generic or b.generic:
        return Fraction(1)
    if a.dimensions and b.dimensions and a.words and b.words and not a.words & b.words:
        return None  # grams of salt, grams of sugar
    if not (a.dimensions and b.dimensions) and (a.words or b.words):
        return Fraction(1) if a.words & b.words else None
    return a.scale / b.scale if a.dimensions == b.dimensions else None
