"""Whether two scalars are the same: numbers, expressions, quantities, words. True, False, or None for "not sure"."""

import re
from fractions import Fraction

from retool_mcore.rewards.grader import choices, units
from retool_mcore.rewards.grader.literals import same_digits, same_ratio
from retool_mcore.rewards.grader.text import phrase
from retool_mcore.rewards.grader.values import form, parsed, same_value, ungrouped
from retool_mcore.rewards.grader.words import same_words


def _scaled(text: str, factor: Fraction) -> str:
    return text if factor == 1 else rf"({text})*({factor.numerator})/({factor.denominator})"


def _same_quantity(a: units.Quantity, t: units.Quantity) -> bool | None:
    same = same_value(ungrouped(a.number), ungrouped(t.number))
    if "temperature" in (a.kind, t.kind):
        return _same_temperature(a, t, same)
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
        exact = form(t.number)
        value = exact.rational() if exact is not None else None
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


def _same_temperature(a: units.Quantity, t: units.Quantity, same: bool | None) -> bool | None:
    """Degrees of two scales by their kelvin; without a scale the numbers count."""
    if a.scale == t.scale or {a.kind, t.kind} & {"", "degree"}:
        return same
    if not (a.scale and t.scale):
        return same if (a.unit or t.unit) and (a.unit or t.unit).generic else False
    left, right = (f"({side.number})*({units.SCALES[side.scale][0]})+{units.SCALES[side.scale][1]}" for side in (a, t))
    return same_value(left, right)


def same_scalar(a: str, t: str) -> bool | None:
    """Whether answer `a` and truth `t`, scalars in normal form, are the same; None when only algebra can tell."""
    a, t = a.strip(), t.strip()
    if not a or not t:
        return False
    if a == t:
        return True
    if (verdict := choices.choice(a, t, same_scalar)) is not None:
        return verdict
    if (verdict := same_digits(a, t)) is not None:
        return verdict
    if ":" in a and ":" in t:
        return same_ratio(a, t)
    left, right = units.split(a), units.split(t)
    if left.kind or right.kind:
        if left.kind == "unit" and not right.kind:
            right = units.split_letter(t) or right
        elif right.kind == "unit" and not left.kind:
            left = units.split_letter(a) or left
        return _same_quantity(left, right)
    sides = phrase(a), phrase(t)
    if any(sides) and (all(sides) or parsed(a) is None or parsed(t) is None):
        verdict = same_words(a, t)
        # Letters in a row may also be a product, `xy` and `yx`.
        if verdict is not False or parsed(a) is None or parsed(t) is None or set(sides) & {"yes", "no"}:
            return verdict
    letters = units.split_letter(a), units.split_letter(t)
    if (letters[0] is None) != (letters[1] is None):
        # `5 m` against `5`: metres. `5m` and `5m^2` alone may be products, and are where the truth has the letter.
        both = list(zip(letters, (a, t), strict=True))
        known, true = parsed(a), parsed(t)
        if known and true and known.symbols & true.symbols - {"pi", "e", "i"}:
            return same_value(a, t)
        spaced = all(side is None or re.search(r" [a-zA-Z](?:\^\{?[23]\}?)?$", full) for side, full in both)
        number, true_number = (side.number if side else full for side, full in both)
        tree, true_tree = parsed(number), parsed(true_number)
        if spaced and tree and true_tree and not tree.symbols:
            return same_value(number, true_number)
        if tree and true_tree and tree.symbols and true_tree.symbols:
            return same_value(a, t)
        return True if same_value(a, t) else None
    return same_value(a, t)
