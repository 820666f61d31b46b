"""Pairs with a known verdict: true ones by rewriting an answer, false ones by perturbing it. Seeded, thousands of them.

The value of every answer is known exactly here (integers, fractions, polynomials by their coefficients), so that a
perturbation provably changes it. `pairs(seed, count)` is also a command: `python metamorphic.py 7 20` prints 20.
"""

import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from tests.support.grading import statements

UNITS = [("cm", "m", "kg"), ("kg", "g", "cm"), ("hours", "minutes", "meters"), ("miles", "km", "hours")]
WORDS = ["Evelyn", "Monday", "even", "odd", "parabola", "red", "increasing", "circle"]


@dataclass(frozen=True)
class Pair:
    """An answer, a truth, whether they are the same, and the rule that made the pair."""

    answer: str
    truth: str
    same: bool
    rule: str


def spaced(text: str, r: random.Random) -> str:
    """`text` with the trimmings that models add: dollar signs, sizing, spaces, a full stop."""
    for old, new in (
        ("(", r"\left("),
        (")", r"\right)"),
        (",", ", "),
        (",", r",\ "),
        (r"\frac", r"\dfrac"),
        ("-", "- "),
    ):
        # A comma with a space behind it groups no thousands, a minus sign without a left side is none of a difference.
        period = "." in text.split("(")[0]
        fits = {"(": not period, ")": not period, ",": "(" in text or "[" in text, "-": text.startswith("-")}.get(
            old, True
        )
        if fits and r.random() < 0.25:
            text = text.replace(old, new)
    return r.choice(["{}", "${}$", r"\({}\)", " {} ", "{}.", r"\displaystyle {}", "$${}$$"]).format(text)


def integer(n: int, r: random.Random) -> str:
    plain = str(n)
    grouped = f"{n:,}"
    ways = [plain, plain, f"{plain}.0", f"{plain}.00"]
    if abs(n) >= 1000:
        ways += [grouped, grouped.replace(",", "{,}"), grouped.replace(",", r",\!"), grouped.replace(",", r"\,")]
    if n > 0:
        ways += [f"+{plain}", f"0{plain}", rf"\frac{{{3 * n}}}{{3}}", rf"\frac{{{2 * n}}}2"]
        ways += [rf"\sqrt{{{n * n}}}"] if n < 5000 else []
    return r.choice(ways)


def fraction(q: Fraction, r: random.Random) -> str:
    k = r.randint(2, 9)
    top, bottom = abs(q.numerator), q.denominator
    sign = "-" if q < 0 else ""
    ways = [
        rf"{sign}\frac{{{top}}}{{{bottom}}}",
        rf"\frac{{{sign}{top}}}{{{bottom}}}",
        f"{sign}{top}/{bottom}",
        rf"{sign}\tfrac{{{k * top}}}{{{k * bottom}}}",
        f"{sign}({top})/({bottom})",
        rf"{sign}{top} \div {bottom}",
    ]
    if all(p in (2, 5) for p in _primes(bottom)):
        decimal = f"{float(abs(q)):.12f}".rstrip("0")
        ways += [sign + decimal, sign + (decimal[1:] if decimal.startswith("0.") else decimal)]
    else:
        ways.append(sign + repeating(abs(q), r))
    if top > bottom > 1:
        ways += [rf"{sign}{top // bottom}\frac{{{top % bottom}}}{{{bottom}}}"]
    return r.choice(ways)


def repeating(q: Fraction, r: random.Random) -> str:
    """A decimal with its period, by bar, dots or brackets."""
    digits, seen, rest = "", {}, q % 1
    while rest not in seen:
        seen[rest] = len(digits)
        rest *= 10
        digits += str(int(rest))
        rest %= 1
    fixed, period = digits[: seen[rest]], digits[seen[rest] :]
    dots = rf"\dot{{{period}}}" if len(period) == 1 else rf"\dot{{{period[0]}}}{period[1:-1]}\dot{{{period[-1]}}}"
    ways = [rf"\overline{{{period}}}", f"({period})", dots, rf"\bar{{{period}}}"]
    return f"{int(q)}.{fixed}{r.choice(ways)}"


UNDER_20 = str.split(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = str.split("twenty thirty forty fifty sixty seventy eighty ninety")


def spelled(n: int, r: random.Random) -> str:
    """English words of 0 <= n < 1,000,000."""
    if n < 20:
        return UNDER_20[n]
    if n < 100:
        return TENS[n // 10 - 2] + (r.choice([" ", "-"]) + UNDER_20[n % 10] if n % 10 else "")
    if n < 1000:
        rest = r.choice([" ", " and "]) + spelled(n % 100, r) if n % 100 else ""
        return f"{UNDER_20[n // 100]} hundred{rest}"
    rest = r.choice([" ", ", "]) + spelled(n % 1000, r) if n % 1000 else ""
    return f"{spelled(n // 1000, r)} thousand{rest}"


def spellings(r: random.Random) -> Iterator[Pair]:
    """Number words, residues, the unit of imaginary numbers."""
    n = r.choice([r.randint(0, 120), r.randint(0, 999_999)])
    words = spelled(n, r)
    other = spelled(n + r.randint(1, 9), r)
    yield Pair(r.choice(["{}", r"\text{{{}}}", r"\textbf{{{}}}."]).format(words), str(n), True, "number words")
    yield Pair(other, str(n), False, "number words: another")
    yield Pair(f"{words} or {other}", str(n), False, "number words: two")
    top, bottom, part = r.choice(
        [(1, 2, "half"), (2, 3, "thirds"), (3, 4, "quarters"), (4, 5, "fifths"), (7, 10, "tenths")]
    )
    glue = r.choice([" ", "-"])
    yield Pair(f"{spelled(top, r)}{glue}{part}", rf"\frac{{{top}}}{{{bottom}}}", True, "fraction in words")
    yield Pair(
        f"{spelled(top + 1, r)}{glue}{part}", rf"\frac{{{top}}}{{{bottom}}}", False, "fraction in words: another"
    )
    m = r.randint(3, 30)
    a = r.randrange(m)
    mods = [rf"\pmod {m}", rf"\pmod{{{m}}}", f"(mod {m})", rf"\bmod {m}", f"mod {m}", rf"\ (\mathrm{{mod}}\ {m})"]
    lead = r.choice(["", r"x \equiv ", r"x\equiv", "x = ", "n ≡ "])
    truth = rf"x \equiv {a} \pmod{{{m}}}"
    yield Pair(f"{lead}{a} {r.choice(mods)}", truth, True, "residue")
    yield Pair(f"{lead}{a + m * r.randint(-3, 3)} {r.choice(mods)}", truth, True, "residue: representative")
    yield Pair(f"{lead}{a + r.randint(1, m - 1)} {r.choice(mods)}", truth, False, "residue: another")
    yield Pair(f"{lead}{a} \\pmod{{{m + 1}}}", truth, False, "residue: modulus")
    a, b = r.randint(1, 9), r.randint(2, 9)
    unit = r.choice([r"\mathrm{i}", "j", "i", r"\,i", r"\text{i}", r"\cdot i"])
    yield Pair(f"{a}+{b}{unit}", f"{a}+{b}i", True, "imaginary unit")
    yield Pair(f"{a}-{b}{unit}", f"{a}+{b}i", False, "imaginary unit: sign")
    power, variable = r.randint(2, 4), r.choice("xyt")
    name = r.choice([r"\sin", r"\cos", r"\tan", r"\ln", r"\log"])
    truth = rf"{name}^{power} {variable}"
    yield Pair(rf"({name} {variable})^{power}", truth, True, "function to a power")
    yield Pair(rf"{name}^{{{power}}}({variable})", truth, True, "function to a power")
    yield Pair(rf"{name}^{power} u", truth, False, "function to a power: argument")
    yield Pair(rf"{name} {variable}", truth, False, "function to a power: power")
    n = r.randint(4, 6)
    double = str(math.prod(range(n, 0, -2)))
    yield Pair(f"{n}!!", double, True, "double factorial")
    yield Pair(f"({n}!)!", f"{n}!!", False, "double factorial: twice")


def stated(r: random.Random) -> Iterator[Pair]:
    """A true pair in every way of `statements` that keeps its meaning or changes it."""
    a, b = r.randint(-400, 400), r.randint(2, 60)
    answer, truth, other, atomic = r.choice(
        [
            (str(a), str(a), str(a + b), a > 2),  # `1!!` is 1, and `2!!` is 2
            (rf"\frac{{{3 * b + 1}}}{{3}}", rf"\frac{{{6 * b + 2}}}{{6}}", rf"\frac{{{3 * b + 2}}}{{3}}", False),
            (rf"{b}\sqrt{{3}}", rf"\sqrt{{{3 * b * b}}}", rf"{b + 1}\sqrt{{3}}", False),
            (rf"{b}\pi", rf"\pi \cdot {b}", rf"{b + 1}\pi", False),
            (f"x^2+{b}", f"{b}+x^2", f"x^2+{b + 1}", False),
            (f"({a}, {b})", f"({a},{b})", f"({a}, {b + 1})", False),
            (f"{a}+{b}i", f"{b}i+{a}", f"{a}-{b}i", False),
        ]
    )
    for kind, templates in statements.CHANGED.items():
        for template in templates:
            yield Pair(statements.filled(template, answer, other), truth, False, kind)
    for template in statements.ATOMIC_CHANGED if atomic else ():
        yield Pair(statements.filled(template, answer, other), truth, False, "changed")
    for template in statements.WRAPPED:
        yield Pair(statements.filled(template, answer, other), truth, True, "wrapped")


def _primes(n: int) -> set[int]:
    return {p for p in range(2, n + 1) if n % p == 0 and all(p % d for d in range(2, p))}


def polynomial(coefficients: list[int], r: random.Random, factored: bool = False) -> str:
    if factored and len(coefficients) == 3:  # a x^2 + b x + c = x (a x + b) + c
        c, b, a = coefficients
        return f"x({a}x+{b})+{c}".replace("+-", "-")
    terms = [(c, n) for n, c in enumerate(coefficients) if c]
    r.shuffle(terms)
    text = ""
    for c, n in terms:
        power = "" if n == 0 else ("x" if n == 1 else r.choice([f"x^{n}", f"x^{{{n}}}", rf"x^{n}"]))
        size = str(abs(c)) if abs(c) != 1 or not power else ""
        dot = r.choice(["", "", r"\cdot "]) if size and power else ""
        text += ("-" if c < 0 else "+") + size + dot + power
    return text.removeprefix("+") or "0"


def _digit(n: int, r: random.Random) -> int:
    """Another number: one digit changed, dropped or added, or the sign turned."""
    text = list(str(abs(n)))
    at = r.randrange(len(text))
    way = r.randrange(4)
    if way == 0:
        text[at] = r.choice([d for d in "123456789" if d != text[at]])
    elif way == 1 and len(text) > 1:
        del text[at]
    elif way == 2:
        text.insert(at, r.choice("123456789"))
    else:
        return -n if n else 1
    other = int("".join(text)) * (1 if n >= 0 else -1)
    return other if other != n else n + 1


def numbers(r: random.Random) -> Iterator[Pair]:
    n = r.choice([r.randint(-30, 30), r.randint(-999, 999), r.randint(1000, 10**7)])
    other = _digit(n, r)
    yield Pair(spaced(integer(n, r), r), str(n), True, "integer")
    yield Pair(spaced(integer(other, r), r), str(n), False, "integer: digit or sign")
    yield Pair(f"x = {integer(n, r)}", str(n), True, "assignment")
    yield Pair(str(n), f"k={n}", True, "assignment of the truth")
    yield Pair(f"x = {n}", f"y={n}", False, "another variable")
    yield Pair(r.choice([f"{n} or {other}", f"{n}, {other}", rf"{n} \text{{ or }} {other}"]), str(n), False, "hedged")
    yield Pair(", ".join(map(str, range(n - 9, n + 9))), str(n), False, "stuffed")
    yield Pair(rf"{n}\%", rf"{n} \text{{ percent}}", True, "percent")
    yield Pair(rf"{other}\%", rf"{n}\%", False, "percent: digit")
    yield Pair(rf"{n}^\circ", str(n), True, "degrees")
    if n > 9:
        yield Pair(f"{n // 10}.{n % 10} \\times 10^1", str(n), True, "scientific")
        yield Pair(f"{n // 10}.{n % 10} \\times 10^2", str(n), False, "scientific: exponent")


def quantities(r: random.Random) -> Iterator[Pair]:
    n = r.randint(2, 400)
    unit, near, far = r.choice(UNITS)
    written = r.choice([f"{n} {unit}", rf"{n}\text{{ {unit}}}", rf"{n}\,\mathrm{{{unit}}}", rf"{n} \mbox{{ {unit}}}"])
    yield Pair(written, f"{n} {unit}", True, "unit")
    yield Pair(written, str(n), True, "unit only in the answer")
    yield Pair(str(n), written, True, "unit only in the truth")
    yield Pair(rf"{n}\text{{ {near}}}", written, False, "unit: scale")
    yield Pair(rf"{n}\text{{ {far}}}", written, False, "unit: kind")
    yield Pair(rf"{n + 1}\text{{ {unit}}}", written, False, "unit: digit")
    yield Pair(rf"\${n}", str(n), True, "currency")
    yield Pair(rf"{100 * n}\text{{ cm}}", f"{n} m", True, "unit: converted")


def fractions(r: random.Random) -> Iterator[Pair]:
    q = Fraction(r.randint(-60, 60) or 7, r.choice([2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 25]))
    truth = rf"\frac{{{q.numerator}}}{{{q.denominator}}}" if q.denominator > 1 else str(q)
    yield Pair(spaced(fraction(q, r), r), truth, True, "fraction")
    other = Fraction(_digit(q.numerator, r), q.denominator)
    yield Pair(spaced(fraction(other, r), r), truth, False, "fraction: numerator")
    other = Fraction(q.numerator, q.denominator + r.randint(1, 3))
    yield Pair(fraction(other, r), truth, False, "fraction: denominator")
    yield Pair(f"{float(q):.2f}1", truth, False, "decimal: cut too early")
    if q.numerator not in (1, -1):
        yield Pair(rf"\frac{{{q.denominator}}}{{{q.numerator}}}", truth, abs(q) == 1, "fraction: turned over")


def radicals(r: random.Random) -> Iterator[Pair]:
    a, n, k = r.randint(1, 12), r.choice([2, 3, 5, 6, 7, 10]), r.randint(2, 6)
    truth = rf"{a}+{k}\sqrt{{{n}}}"
    ways = [rf"{k}\sqrt{{{n}}}+{a}", rf"{a}+\sqrt{{{k * k * n}}}", rf"{a}+{k}\cdot {n}^{{1/2}}"]
    yield Pair(spaced(r.choice(ways), r), truth, True, "radical")
    yield Pair(rf"{a}-{k}\sqrt{{{n}}}", truth, False, "radical: sign")
    yield Pair(rf"{a}+{k + 1}\sqrt{{{n}}}", truth, False, "radical: coefficient")
    yield Pair(rf"{a}+{k}\sqrt{{{n + 1}}}", truth, False, "radical: radicand")
    yield Pair(rf"\frac{{{n}}}{{\sqrt{{{n}}}}}", rf"\sqrt{{{n}}}", True, "radical: rationalised")
    yield Pair(rf"{a} \pm {k}\sqrt{{{n}}}", rf"{a}-{k}\sqrt{{{n}}}, {a}+{k}\sqrt{{{n}}}", True, "plus or minus")
    yield Pair(rf"{a} \pm {k}\sqrt{{{n}}}", truth, False, "plus or minus: one of two")
    yield Pair(rf"\frac{{{a}\pi}}{{{k}}}", rf"\frac{{{2 * a}}}{{{2 * k}}}\pi", True, "multiple of pi")
    yield Pair(rf"\frac{{{a}}}{{{k}}}", rf"\frac{{{a}\pi}}{{{k}}}", False, "multiple of pi: dropped")


def polynomials(r: random.Random) -> Iterator[Pair]:
    coefficients = [r.randint(-9, 9) or 3 for _ in range(3)]
    truth = polynomial(coefficients, random.Random(0))
    yield Pair(spaced(polynomial(coefficients, r), r), truth, True, "polynomial")
    yield Pair(polynomial(coefficients, r, factored=True), truth, True, "polynomial: nested")
    other = list(coefficients)
    other[r.randrange(3)] += r.choice([-1, 1, 2])
    yield Pair(polynomial(other, r), truth, False, "polynomial: coefficient")
    yield Pair(truth.replace("x", "y"), truth, False, "polynomial: variable")
    a, b = r.randint(-9, 9), r.randint(-9, 9)
    product = polynomial([a * b, a + b, 1], random.Random(1))
    yield Pair(f"(x+{a})(x+{b})".replace("+-", "-"), product, True, "polynomial: factored")
    yield Pair(f"(x+{a})(x+{b + 1})".replace("+-", "-"), product, False, "polynomial: factor")
    yield Pair(f"y = {truth}", truth, True, "polynomial: assignment")


def collections(r: random.Random) -> Iterator[Pair]:
    items = r.sample(range(-30, 60), r.randint(3, 5))
    mixed = r.sample(items, len(items))
    dropped = items[: r.randrange(len(items))] + items[-1:]
    dropped = dropped if len(dropped) < len(items) else items[1:]
    changed = [*items[:-1], 99]
    row = ",".join(map(str, items))

    def join(values: list[int], glue: str = ", ") -> str:
        return glue.join(map(str, values))

    yield Pair(rf"\{{{join(mixed)}\}}", rf"\{{{row}\}}", True, "set: permuted")
    yield Pair(join(mixed), row.replace(",", ", "), True, "list: permuted")
    yield Pair(rf"{join(mixed[:-1])} \text{{ and }} {mixed[-1]}", rf"\{{{row}\}}", True, "list: and")
    yield Pair(rf"\{{{join(dropped)}\}}", rf"\{{{row}\}}", False, "set: dropped element")
    yield Pair(rf"\{{{join(changed)}\}}", rf"\{{{row}\}}", False, "set: changed element")
    yield Pair(f"({join(items)})", f"({row})", True, "tuple")
    swapped = [items[1], items[0], *items[2:]]
    yield Pair(f"({join(swapped)})", f"({row})", False, "tuple: order")
    yield Pair(f"({join(dropped)})", f"({row})", False, "tuple: dropped element")
    yield Pair(rf"\{{{join(items)}\}}", f"({row})", False, "tuple: braces")
    yield Pair(
        f"({items[1]},{items[0]}), ({items[2]},7)", f"({items[2]},7),({items[1]},{items[0]})", True, "list of tuples"
    )
    yield Pair(
        f"({items[0]},{items[1]}), ({items[2]},7)", f"({items[2]},7),({items[1]},{items[0]})", False, "list of tuples"
    )
    cells = [items[:2], items[1:3]]
    body = r" \\ ".join(" & ".join(map(str, line)) for line in cells)
    wrong = r" \\ ".join(" & ".join(map(str, line)) for line in cells[::-1])
    matrix = rf"\begin{{pmatrix}} {body} \end{{pmatrix}}"
    yield Pair(rf"\begin{{bmatrix}}{body.replace(' ', '')}\end{{bmatrix}}", matrix, True, "matrix")
    yield Pair(rf"\begin{{pmatrix}} {wrong} \end{{pmatrix}}", matrix, False, "matrix: rows swapped")


def intervals(r: random.Random) -> Iterator[Pair]:
    a = r.randint(-20, 20)
    b = a + r.randint(1, 30)
    left, right = r.choice("[("), r.choice("])")
    truth = f"{left}{a},{b}{right}"
    low, high = (r"\le" if left == "[" else "<"), (r"\leq" if right == "]" else "<")
    yield Pair(spaced(truth, r), truth, True, "interval")
    yield Pair(rf"x \in {truth}", truth, True, "interval: membership")
    yield Pair(truth, rf"{a} {low} x {high} {b}", True, "interval: inequality")
    yield Pair(f"{'(' if left == '[' else '['}{a},{b}{right}", truth, False, "interval: left bracket")
    yield Pair(f"{left}{a},{b}{')' if right == ']' else ']'}", truth, False, "interval: right bracket")
    yield Pair(f"{left}{a},{b + 1}{right}", truth, False, "interval: bound")
    yield Pair(rf"x {high} {b}", rf"{b} {'>=' if right == ']' else '>'} x", True, "inequality: turned over")
    yield Pair(rf"x > {b}", rf"x < {b}", False, "inequality: sense")
    union = rf"(-\infty,{a})\cup({b},\infty)"
    yield Pair(rf"({b},\infty)\cup(-\infty,{a})", union, True, "union: order")
    yield Pair(rf"(-\infty,{a}]\cup({b},\infty)", union, False, "union: bracket")
    yield Pair(rf"(-\infty,{a})", union, False, "union: dropped piece")


def words(r: random.Random) -> Iterator[Pair]:
    word, other = r.sample(WORDS, 2)
    yield Pair(
        r.choice([word, word.lower(), rf"\text{{{word}}}", rf"\textbf{{{word}}}."]), rf"\text{{{word}}}", True, "word"
    )
    yield Pair(other, rf"\text{{{word}}}", False, "word: another")
    letter, wrong = r.sample("ABCDE", 2)
    marked = [letter, f"({letter})", rf"\text{{({letter})}}", rf"\textbf{{({letter})}}", f"{letter}."]
    yield Pair(r.choice(marked), r.choice(marked), True, "choice")
    yield Pair(wrong, r.choice(marked), False, "choice: another")


RULES = [numbers, quantities, fractions, radicals, polynomials, collections, intervals, words, spellings, stated]


def pairs(seed: int, count: int) -> list[Pair]:
    """`count` pairs, the same ones for the same seed."""
    r = random.Random(seed)
    found: list[Pair] = []
    while len(found) < count:
        for rule in RULES:
            found += rule(r)
    return found[:count]


if __name__ == "__main__":
    for pair in pairs(int(sys.argv[1]), int(sys.argv[2])):
        print(pair)
