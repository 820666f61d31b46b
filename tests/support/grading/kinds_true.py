"""Pairs of the kinds in which right answers were once refused, each next to wrong answers of the same look.

Each generator takes a seeded `random.Random` and yields (answer, truth, same), as those of kinds_false.py.
"""

from collections.abc import Iterator
from random import Random

from tests.support.grading.kinds_words import Case, choices, nothing


def constants(r: Random) -> Iterator[Case]:
    """Antiderivatives with other names for their constant."""
    v, n, a, b = r.choice("xtuy"), r.randint(2, 6), r.randint(2, 9), r.randint(2, 9)
    body, plain = r.choice(
        [
            (rf"{a}{v}^{{{n}}}", f"{a}*{v}**{n}"),
            (rf"{a}{v}^{n}+{b}{v}", f"{a}*{v}**{n} + {b}*{v}"),
            (rf"\frac{{{v}^{n}}}{{{n}}}-{a}\cos {v}", f"{v}**{n}/{n} - {a}*cos({v})"),
            (rf"{a}\ln|{v}|+{b}{v}", f"{b}*{v} + {a}*log({v})"),
            (rf"{a}e^{{{b}{v}}}", f"{a}*exp({b}*{v})"),
            (rf"{a}\sin({b}{v})", f"{a}*sin({b}*{v})"),
        ]
    )
    truth = f"{plain} + C"
    for letter in ("C", "c", "K", "k", r"\text{constant}", "C_1"):
        yield f"{body} + {letter}", truth, True
    yield rf"\int f({v})\,d{v} = {body} + C", truth, True
    yield rf"F({v}) = {body} + C", truth, True
    yield f"C + {body}", truth, True
    yield f"{body} + {a} + C", truth, True
    yield body, truth, False
    yield f"{body} + C{v}", truth, False
    yield f"{body} + {v} + C", truth, False
    yield f"2({body}) + C", truth, False
    yield f"-({body}) + C", truth, False
    yield f"{body} + {v}^2 + K", truth, False
    yield f"{body} + 1", truth, False
    yield f"({body}) C", truth, False
    yield f"a+b+k+{a}", f"a+b+c+{a}", False
    yield f"{a}A+B+K", f"{a}A+B+C", False


def points(r: Random) -> Iterator[Case]:
    """Points written as equations."""
    a, b, c, d = r.sample(range(-9, 30), 4)
    x, y = r.choice([("x", "y"), ("a", "b"), ("u", "v"), ("m", "n"), ("p", "q")])
    two = f"({a},{b}), ({c},{d})"
    for join in (" and ", " or ", "; ", r" \text{ or } ", r" \text{ and } "):
        yield f"{x}={a}, {y}={b}{join}{x}={c}, {y}={d}", two, True
        yield two, f"{x}={a}, {y}={b}{join}{x}={c}, {y}={d}", True
        yield f"{x}={c}, {y}={d}{join}{x}={a}, {y}={b}", two, True
        yield f"{x}={a}, {y}={d}{join}{x}={c}, {y}={b}", two, False
        yield f"{x}={b}, {y}={a}{join}{x}={d}, {y}={c}", two, False
        yield f"({a},{d}), ({c},{b})", f"{x}={a}, {y}={b}{join}{x}={c}, {y}={d}", False
        yield f"({a},{b})", f"{x}={a}, {y}={b}{join}{x}={c}, {y}={d}", False
    yield rf"\{{({a},{b}),({c},{d})\}}", f"{x}={a}, {y}={b} or {x}={c}, {y}={d}", True
    yield rf"({x},{y})=({a},{b}) \text{{ or }} ({c},{d})", two, True
    yield rf"({x},{y})=({a},{b}), ({x},{y})=({c},{d})", two, True
    yield f"({a},{a})", f"{x}={y}={a}", True
    yield f"{x}={y}={a}", f"({a},{a})", True
    yield f"({a},{b})", f"{x}={y}={a}", False
    yield f"{x}={y}={b}", f"({a},{a})", False
    yield rf"\{{({a},{b})\}}", f"{x}={a}, {y}={b}", True
    yield f"{x}={a}, {y}={b}", rf"\{{({a},{b})\}}", True
    yield rf"\{{({b},{a})\}}", f"{x}={a}, {y}={b}", False
    yield f"x={a}, y={b}, z={c}", f"({a},{b},{c})", True
    yield f"x={a}, z={b}, y={c}", f"({a},{b},{c})", False


def bases(r: Random) -> Iterator[Case]:
    """Bases in words."""
    base, word = r.choice(
        [(2, "two"), (3, "three"), (4, "four"), (5, "five"), (6, "six"), (7, "seven"), (8, "eight"), (9, "nine")]
    )
    n = "".join([str(r.randint(1, base - 1)), *(str(r.randrange(base)) for _ in range(r.randint(1, 4)))])
    wrong = "".join(str(int(c) % (base - 1) + 1) if base > 2 and i == 0 else c for i, c in enumerate(n)) + (
        "1" if base == 2 else ""
    )
    truth = r.choice([f"{n}_{{{base}}}", f"{n}_{base}"])
    forms = [
        r"{}\text{{ (base {})}}",
        "{} (base {})",
        "{} in base {}",
        r"{}\text{{ base }}{}",
        "{} base {}",
        r"{}_{{\text{{base }}{}}}",
    ]
    for form in r.sample(forms, 4):
        yield form.format(n, base), truth, True
        yield form.format(wrong, base), truth, False
        yield form.format(n, base + 1), truth, False
    yield f"{n} (base {word})", truth, True
    yield truth, f"{n} (base {base})", True
    yield f"{n}_{{{base + 1}}}", f"{n} (base {base})", False


def products(r: Random) -> Iterator[Case]:
    """Letters that are units elsewhere, in truths with a sign of multiplication; e and i as unknowns."""
    n, unit = r.randint(2, 99), r.choice("msghlL")
    other = r.choice([x for x in "msgh" if x != unit])
    for answer in (f"{n} {unit}", f"{n}{unit}", rf"{n} \cdot {unit}", rf"{n}\,{unit}"):
        yield answer, f"{n}*{unit}", True
        yield answer.replace(unit, other), f"{n}*{unit}", False
        yield answer, f"{n + 1}*{unit}", False
    yield f"{n}{unit}^2", f"{n}*{unit}**2", True
    yield f"{n} {unit}^2", f"{n}*{unit}**2", True
    yield f"{n}{unit}^3", f"{n}*{unit}**2", False
    yield f"{n}", f"{n}*{unit}", False
    yield f"{n}", f"{n}*{unit}**2", False
    e = r.choice("ei")
    yield f"{e} = {n}", f"{n}", True
    yield f"{e} = -{n}/7", f"-{n}/7", True
    yield f"{n}", f"{e} = {n}", True
    yield f"{e} = {n + 1}", f"{n}", False
    yield f"{e} = -{n}", f"{n}", False


def factorials(r: Random) -> Iterator[Case]:
    """Factorials and binomials of letters."""
    n, k, a = r.choice("nmkN"), r.randint(2, 5), r.randint(1, 3)
    down = "".join(f"({n}-{i})" for i in range(1, k))
    fact = rf"\frac{{{n}!}}{{{k}!({n}-{k})!}}"
    yield fact, f"C({n},{k})", True
    yield fact, rf"\binom{{{n}}}{{{k}}}", True
    yield rf"\frac{{{n}!}}{{({n}-{k})!}}", f"C({n},{k})", False
    yield rf"\frac{{{n}!}}{{{k}!({n}-{k - 1})!}}", rf"\binom{{{n}}}{{{k}}}", False
    yield f"{n}{down}", f"{n}!/({n}-{k})!", True
    yield f"{n}{down}", f"{n}!/({n}-{k + 1})!", False
    yield f"{n}{down}({n}-{k})", f"{n}!/({n}-{k})!", False
    yield f"{n}+{a + 1}", f"({n}+{a + 1})!/({n}+{a})!", True
    yield f"{n}+{a}", f"({n}+{a + 1})!/({n}+{a})!", False
    yield rf"{n}! \cdot ({n}+1)", f"({n}+1)!", True
    yield rf"{n}! \cdot {n}", f"({n}+1)!", False
    yield f"({n}+1)!-{n}!", rf"{n}\cdot {n}!", True
    yield f"({n}+1)!-1", rf"{n}\cdot {n}!", False
    j = "j" if n != "j" else "i"
    yield rf"\frac{{{n}!}}{{{j}!({n}-{j})!}}", rf"\binom{{{n}}}{{{j}}}", True
    yield rf"\binom{{{n}}}{{{n}-{j}}}", rf"\binom{{{n}}}{{{j}}}", True
    yield rf"\binom{{{n}}}{{{j}-1}}", rf"\binom{{{n}}}{{{j}}}", False
    yield rf"\frac{{(2{n})!}}{{({n}!)^2}}", rf"\binom{{2{n}}}{{{n}}}", True
    yield rf"\frac{{(2{n})!}}{{{n}!}}", rf"\binom{{2{n}}}{{{n}}}", False
    yield rf"\frac{{(2{n})!}}{{2^{n} {n}!}}", rf"(2{n}-1)!!", True
    yield rf"\frac{{{n}^2+{n}}}{{2}}", rf"\binom{{{n}+1}}{{2}}", True


def units(r: Random) -> Iterator[Case]:
    """Quantities: powers inside of words, symbols and names of units, what is counted."""
    n, u = r.randint(2, 90), r.choice(["m", "cm", "km", "ft", "mm"])
    v = "cm" if u != "cm" else "mm"
    for number in (f"{n}", rf"{n}\pi", rf"{n}\sqrt{{2}}"):
        truth = rf"{number}\text{{ {u}}}^2"
        for answer in (
            rf"{number} \, \mathrm{{{u}^2}}",
            rf"{number} \text{{ {u}²}}",
            rf"{number}\text{{ {u}}}^{{2}}",
            rf"{number}\ \text{{{u}}}^2",
            rf"{number} \text{{ {u}^2}}",
            rf"{number}\mathrm{{~{u}}}^2",
        ):
            yield answer, truth, True
        yield rf"{number} \, \mathrm{{{u}^3}}", truth, False
        yield rf"{number} \, \mathrm{{{v}^2}}", truth, False
        yield rf"{number}\text{{ {u}}}", truth, False
        yield rf"{number} \, \mathrm{{{u}^2}}", number, True
    s, name, other = r.choice(
        [
            ("J", "joules", "N"),
            ("N", "newtons", "J"),
            ("W", "watts", "V"),
            ("V", "volts", "W"),
            ("Hz", "hertz", "J"),
            ("Pa", "pascals", "N"),
            ("g", "grams", "s"),
            ("kJ", "kilojoules", "kN"),
        ]
    )
    for answer in (rf"{n}\text{{ {s}}}", f"{n} {name}", rf"{n}\,\mathrm{{{s}}}", rf"{n} \text{{ {name}}}"):
        yield answer, f"{n} {s}", True
        yield f"{n} {s}" if s != "g" else f"{n} grams", answer, True
    yield rf"{n}\text{{ {other}}}", f"{n} {s}", False
    yield rf"{n + 1}\text{{ {s}}}", f"{n} {s}", False
    yield f"{n}", f"{n} {s}", True
    stuff = r.choice(["salt", "sugar", "water", "flour", "rope", "paint"])
    noun = r.choice(["grams", "liters", "cups", "feet", "pounds", "ounces"])
    yield f"{n} {noun}", f"{n} {noun} of {stuff}", True
    yield f"{n}", f"{n} {noun} of {stuff}", True
    yield rf"{n} \text{{ {noun} of {stuff}}}", f"{n} {noun}", True
    yield f"{n + 1} {noun}", f"{n} {noun} of {stuff}", False
    yield f"{n} kilometers", f"{n} {noun} of {stuff}", False
    yield f"{n}", f"{n} times", True
    yield rf"{n} \text{{ times}}", f"{n}", True
    yield f"{n + 1}", f"{n} times", False
    yield f"{n} times 2", f"{n} times", False
    yield f"{n} times 2", f"{n}", False


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]


def others(r: Random) -> Iterator[Case]:
    """The rarer forms."""
    a, b = sorted(r.sample(range(1, 9), 2))
    x, y = r.randint(1, 9) * 1000 + r.randint(0, 999), r.randint(10, 99) * 1000 + r.randint(0, 999)
    yield f"{x} and {y}", f"{x:,} and {y:,}", True
    yield f"{x:,} and {y:,}", f"{x} and {y}", True
    yield rf"{y:,} \text{{ and }} {x:,}", f"{x}, {y}", True
    yield f"{x} and {y + 1}", f"{x:,} and {y:,}", False
    yield rf"{a} \text{{ out of }} {b}", rf"\frac{{{a}}}{{{b}}}", True
    yield f"{a} out of {b}", f"{a}/{b}", True
    yield f"{b} out of {a}", f"{a}/{b}", False
    yield f"{a} out of {b + 1}", f"{a}/{b}", False
    rows = rf"{a}x & x>{b} \\ -x & x \le {b}"
    bad = rf"{a}x & x \ge {b} \\ -x & x < {b}"
    cases = rf"\begin{{cases}} {rows}\end{{cases}}"
    yield rf"\left\{{\begin{{array}}{{ll}} {rows}\end{{array}}\right.", cases, True
    yield rf"\left\{{ \begin{{array}}{{cl}} {rows} \\ \end{{array}} \right.", cases, True
    yield rf"f(x)=\left\{{\begin{{array}}{{ll}} {rows}\end{{array}}\right.", cases, True
    yield rf"\left\{{\begin{{array}}{{ll}} {bad}\end{{array}}\right.", cases, False
    reals = rf"(-\infty,{a})\cup({a},{b})\cup({b},\infty)"
    for said in (
        f"all real numbers except {a} and {b}",
        rf"\text{{all real numbers except }} {a} \text{{ and }} {b}",
        rf"\text{{All real numbers except {a} and {b}}}",
        rf"\mathbb{{R}} \setminus \{{{a},{b}\}}",
    ):
        yield said, reals, True
        yield said.replace(str(b), str(b + 1)), reals, False
    yield f"all real numbers except {a}", reals, False
    m = r.randint(b + 1, 12)
    for said in (
        rf"x \equiv {a} \text{{ (mod }} {m})",
        rf"x \equiv {a} \text{{ (mod {m})}}",
        rf"x \equiv {a} (\text{{mod }} {m})",
    ):
        yield said, rf"x \equiv {a} \pmod {m}", True
        yield said, rf"x \equiv {a} \pmod {{{m + 1}}}", False
        yield said.replace(f"equiv {a}", f"equiv {b}"), rf"x \equiv {a} \pmod {m}", False
    day, month, year = r.randint(1, 28), r.randint(1, 12), r.randint(1900, 2030)
    truth = f"{MONTHS[month - 1]} {day}, {year}"
    yield f"{year}-{month:02}-{day:02}", truth, True
    yield truth, f"{year}-{month:02}-{day:02}", True
    yield f"{year}-{month:02}-{day % 28 + 1:02}", truth, False
    yield f"{year}-{month % 12 + 1:02}-{day:02}", truth, False
    yield f"{year + 1}-{month:02}-{day:02}", truth, False
    yield (
        r.choice([r"\text{minus infinity}", r"\text{negative infinity}", "-infinity", "negative infinity"]),
        r"-\infty",
        True,
    )
    yield r.choice(["infinity", r"\text{positive infinity}"]), r"-\infty", False
    yield f"⌊x/{a + 1}⌋", rf"\lfloor x/{a + 1} \rfloor", True
    yield f"⌈x/{a + 1}⌉", rf"\lceil x/{a + 1} \rceil", True
    yield f"⌈x/{a + 1}⌉", rf"\lfloor x/{a + 1} \rfloor", False
    p = 2 * r.randint(40, 999) + 1
    yield rf"k^{{{p // 2}}}\sqrt{{k}}", rf"k^{{{p}/2}}", True
    yield rf"k^{{\frac{{{2 * p}}}{{4}}}}", rf"k^{{{p}/2}}", True
    yield rf"k^{{{p / 2}}}", rf"k^{{{p}/2}}", True
    yield rf"k^{{{p // 2}}}", rf"k^{{{p}/2}}", False
    yield rf"k^{{{p + 2}/2}}", rf"k^{{{p}/2}}", False
    letter = r.choice("ABCDE")
    yield rf"({letter})\ {x}", rf"\textbf{{({letter})}}\ {x}", True
    yield letter, rf"\textbf{{({letter})}}\ {x}", True
    yield f"{x}", rf"\textbf{{({letter})}}\ {x}", True
    yield rf"({letter})\ {x + 1}", rf"\textbf{{({letter})}}\ {x}", False
    yield f"{x + 1}", rf"\textbf{{({letter})}}\ {x}", False


RIGHT_REFUSED = {
    "multiple choice": choices,
    "constants of integration": constants,
    "nothing in words": nothing,
    "points as equations": points,
    "bases in words": bases,
    "letters of units, e and i": products,
    "factorials of letters": factorials,
    "quantities": units,
    "rarer forms": others,
}
