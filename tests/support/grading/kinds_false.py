"""Pairs of the kinds in which wrong answers were once accepted, each next to right answers of the same look.

Each generator takes a seeded `random.Random` and yields (answer, truth, same). The wrong answers are neighbours of the
truth: another divisor, the other branch of an absolute value, digits in another order, the other scale.
"""

from collections.abc import Iterator
from random import Random

Case = tuple[str, str, bool]
REALS = "xyztuvws"
INTEGERS = "nkmN"


def _shift(n: int) -> str:
    return f"{n:+d}" if n else ""


def floors(r: Random) -> Iterator[Case]:
    """Floors and ceilings that are 0 or 1 at small values."""
    v, a = r.choice(REALS + INTEGERS), r.randint(1, 9)
    d = r.choice([r.randint(3, 19), r.randint(20, 400), 10 ** r.randint(2, 5)])
    other = d + r.choice([1, 2, 7, d])
    name = r.choice(["floor", "ceil"])
    left, right = rf"\l{name}", rf"\r{name}"
    truth = rf"{left} \frac{{{v}{_shift(a)}}}{{{d}}} {right}"
    yield rf"{left}({v}{_shift(a)})/{d}{right}", truth, True
    yield rf"\frac{{0}}{{3}} + {left} \frac{{{a}+{v}}}{{{d}}} {right}", truth, True
    yield rf"{left} \frac{{{v}{_shift(a)}}}{{{other}}} {right}", truth, False
    yield rf"{left} \frac{{{v}{_shift(a + 1)}}}{{{d}}} {right}", truth, False
    yield rf"{left} \frac{{{v}{_shift(a)}}}{{{d}}} {right}+1", truth, False
    yield "0" if name == "floor" else "1", truth, False
    twin = "ceil" if name == "floor" else "floor"
    yield rf"\l{twin} \frac{{{v}{_shift(a)}}}{{{d}}} \r{twin}", truth, False
    m = r.randint(2, 5)
    yield rf"{m}{v}-{left} {v}/{other} {right}", rf"{m}{v}-{left} {v}/{d} {right}", False
    yield rf"{left} {m * d + 1}{v}/{d} {right}", rf"{m}{v}+{left} {v}/{d} {right}", v in INTEGERS
    k, q = r.choice("nkm"), r.randint(2, 30)
    yield rf"\lfloor ({k}+{q - 1})/{q} \rfloor", rf"\lceil {k}/{q} \rceil", True
    yield rf"\lfloor ({k}+{q})/{q} \rfloor", rf"\lceil {k}/{q} \rceil", False
    yield rf"\lfloor {k}/{q} \rfloor", rf"\lceil {k}/{q} \rceil", False
    x = r.choice(REALS)
    yield rf"\lfloor ({x}+{q - 1})/{q} \rfloor", rf"\lceil {x}/{q} \rceil", False
    b = r.choice([2, 3, 5, 7, 8, 12])
    yield rf"\lfloor \log_{{{b}}} {v} \rfloor + 1", rf"\lfloor \log_{{10}} {v} \rfloor + 1", False
    yield rf"1+\lfloor \log_{{10}} {v} \rfloor", rf"\lfloor \log_{{10}} {v} \rfloor + 1", True
    yield rf"\lfloor \sqrt{{{v}+{a}}} \rfloor", rf"\lfloor \sqrt{{{v}}} \rfloor", False
    yield rf"\lfloor \sqrt{{{x}}} \rfloor + \lfloor {x} \rfloor - {x}", rf"\lfloor \sqrt{{{x}}} \rfloor", False
    yield rf"\left\lfloor {x}/2 \right\rfloor+\left\lfloor ({x}+1)/2 \right\rfloor", rf"\lfloor {x} \rfloor", True


def branches(r: Random) -> Iterator[Case]:
    """Absolute values, roots of squares and logarithms, and one branch of each."""
    v, a, m = r.choice("xyztuvw"), r.choice([r.randint(3, 30), r.randint(40, 900)]), r.randint(2, 6)
    yield rf"{a}-{m}{v}", rf"|{m}{v}-{a}|", False
    yield rf"{m}{v}-{a}", rf"|{m}{v}-{a}|", False
    yield rf"|{a}-{m}{v}|", rf"|{m}{v}-{a}|", True
    yield rf"|{m}{v}-{a}|", rf"{m}{v}-{a}", False
    yield rf"|{m}{v}+{a}|", rf"|{m}{v}-{a}|", False
    yield rf"\sqrt{{({m}{v}-{a})^2}}", rf"|{m}{v}-{a}|", True
    yield rf"{a}-{v}", rf"\sqrt{{({v}-{a})^2}}", False
    yield rf"{v}-{a}", rf"\sqrt{{({v}-{a})^2}}", False
    yield rf"|{v}-{a}|", rf"\sqrt{{({v}-{a})^2}}", True
    yield rf"\sqrt{{{v}^2-{2 * a}{v}+{a * a}}}", rf"|{v}-{a}|", True
    yield rf"\sqrt[4]{{({v}-{a})^4}}", rf"|{v}-{a}|", True
    yield rf"{a}-{v}", rf"\sqrt[4]{{({v}-{a})^4}}", False
    yield f"{a}", rf"|{v}-{a}|+{v}", False
    yield rf"2{v}-{a}", rf"|{v}-{a}|+{v}", False
    yield rf"\ln({a}-{v})", rf"\ln|{v}-{a}|", False
    yield rf"\ln({v}-{a})", rf"\ln|{v}-{a}|", False
    yield rf"\ln|{a}-{v}|", rf"\ln|{v}-{a}|", True
    yield rf"\frac{{1}}{{2}}\ln(({v}-{a})^2)", rf"\ln|{v}-{a}|", True
    yield rf"{v}|{v}-{a}|", rf"|{v}^2-{a}{v}|", False
    yield rf"|{v}||{v}-{a}|", rf"|{v}^2-{a}{v}|", True
    yield rf"|{v}-{a}|+|{v}-{a + m}|", rf"|2{v}-{2 * a + m}|", False
    yield f"{m}", rf"|{v}-{a}|-|{v}-{a + m}|", False
    yield "1", rf"\frac{{|{v}-{a}|}}{{{v}-{a}}}", False
    yield "-1", rf"\frac{{|{v}-{a}|}}{{{v}-{a}}}", False


def literals(r: Random) -> Iterator[Case]:
    """Numbers in other bases, with and without their prefix."""
    n = r.choice([r.randint(17, 255), r.randint(256, 2**20)])
    base, digits = r.choice([("0x", f"{n:x}"), ("0b", f"{n:b}"), ("0o", f"{n:o}")])
    truth = base + digits
    if base == "0x":
        yield base + digits.upper(), truth, True
        yield base.upper() + digits.upper(), truth, True
    yield rf"\text{{{truth}}}", truth, True
    yield f"`{truth}`", truth, True
    wrong = {f"{n + 1:x}", f"{n - 1:x}", f"{n ^ 6:x}", f"{n * 16:x}"} if base == "0x" else {digits + "0", digits[:-1]}
    swapped = digits[1] + digits[0] + digits[2:] if len(digits) > 1 else digits + "1"
    reverse = digits[::-1]
    for other in wrong | {swapped, reverse}:
        if other.lstrip("0") != digits:
            yield base + other, truth, False
    yield "-" + truth, truth, False
    yield truth, "-" + truth, False
    yield "0", truth, False
    yield r.choice({"0x": ["0b", "0o"], "0b": ["0x", "0o"], "0o": ["0b", "0x"]}[base]) + digits, truth, False
    bare = f"{r.randint(1, 9)}{r.choice('abcdf')}{r.randint(1, 9)}{r.choice('abcdf')}"
    yield bare, bare, True
    yield bare.upper(), bare, True
    if bare[2:] != bare[:2]:
        yield bare[2:] + bare[:2], bare, False
    if bare != bare[::-1]:
        yield bare[::-1], bare, False


def durations(r: Random) -> Iterator[Case]:
    """Clock times and durations of three parts, with zero hours and with days."""
    h, m, s = r.choice([0, 0, r.randint(0, 23)]), r.randint(0, 59), r.randint(1, 59)
    m2, s2 = (m + r.randint(1, 50)) % 60, (s + r.randint(1, 50)) % 60
    truth = f"{h}:{m:02}:{s:02}"
    yield f"{h:02}:{m:02}:{s:02}", truth, True
    for wrong in (f"{h}:{m2:02}:{s:02}", f"{h}:{m:02}:{s2:02}", f"{h}:{m2:02}:{s2:02}", f"{h + 1}:{m:02}:{s:02}"):
        yield wrong, truth, False
    d = r.randint(1, 9)
    yield f"{d} days, {h:02}:{m:02}:{s:02}", f"{d} days, {h:02}:{m:02}:{s:02}", True
    yield rf"{d}\text{{ days, }}{h:02}:{m:02}:{s:02}", f"{d} days, {h:02}:{m:02}:{s:02}", True
    yield f"{d} days, {h:02}:{m2:02}:{s:02}", f"{d} days, {h:02}:{m:02}:{s:02}", False
    yield f"{d} days, {h:02}:{m:02}:{s2:02}", f"{d} days, {h:02}:{m:02}:{s:02}", False
    yield f"{d + 1} days, {h:02}:{m:02}:{s:02}", f"{d} days, {h:02}:{m:02}:{s:02}", False
    ms = r.randint(100, 899)
    yield f"{h:02}:{m:02}:{s:02}.{ms + 1}", f"{h:02}:{m:02}:{s:02}.{ms}", False
    yield f"{h:02}:{m:02}:{s:02}.{ms}", f"{h:02}:{m:02}:{s:02}.{ms}", True
    hour = r.randint(1, 11)
    half, other = r.choice([("AM", "PM"), ("PM", "AM")])
    clock = f"{hour}:{m:02}:{s:02}"
    dotted = f"{half[0].lower()}.m."
    yield f"{clock} {dotted}", f"{clock} {half}", True
    yield rf"{clock}\text{{ {dotted}}}", f"{clock} {half}", True
    yield f"{clock}{half.lower()}", f"{clock} {half}", True
    yield f"{clock} {other}", f"{clock} {half}", False
    yield f"{hour}:{m2:02}:{s:02} {half}", f"{clock} {half}", False
    yield f"{hour}:{m:02} {half.lower()}", f"{hour}:{m:02} {half}", True
    yield f"{hour}:{m:02} {other.lower()}", f"{hour}:{m:02} {half}", False
    a, b, k = r.randint(1, 9), r.randint(1, 9), r.randint(2, 5)
    yield f"{a * k}:{b * k}:{k}", f"{a}:{b}:1", True
    yield f"{a * k}:{b * k + 1}:{k}", f"{a}:{b}:1", False


def temperatures(r: Random) -> Iterator[Case]:
    """Degrees of three scales."""
    n = r.choice([-10, -5, r.randint(1, 99), r.randint(100, 400)])
    names = {"C": "Celsius", "F": "Fahrenheit"}
    c = r.choice("CF")
    f = "F" if c == "C" else "C"

    def spellings(x: str) -> list[str]:
        return [
            rf"{n}^\circ\text{{{x}}}",
            rf"{n}^{{\circ}}\mathrm{{{x}}}",
            rf"{n}^\circ {x}",
            f"{n}°{x}",
            f"{n} °{x}",
            f"{n} degrees {names[x]}",
            rf"{n}\text{{ degrees {names[x]}}}",
            rf"{n}^\circ \text{{ {names[x]}}}",
        ]

    right, wrong = spellings(c), spellings(f)
    truth = r.choice(right)
    for answer in r.sample(right, 4):
        yield answer, truth, True
    for answer in r.sample(wrong, 4):
        yield answer, truth, False
    yield rf"{n}^\circ", truth, True
    yield f"{n}", truth, True
    yield rf"{n + 1}^\circ\text{{{c}}}", truth, False
    yield rf"{n}\text{{ K}}", truth, False
    yield f"{n} kelvin", truth, False


def powers(r: Random) -> Iterator[Case]:
    """Powers behind a function's bracket."""
    v, p, m = r.choice("xyztuv"), r.choice([2, 3, 4]), r.randint(2, 9)
    f = r.choice(["sin", "cos", "tan", "sinh", "cosh"])
    inner = r.choice([v, f"2*{v}", f"{v}+{m}", f"{v}/{m}"])
    tex = inner.replace("*", "")
    for truth in (f"{m}*{f}({inner})**{p}", rf"{m}\{f}({tex})^{p}", rf"{m}\{f}({tex})^{{{p}}}", f"{m}{f}({inner})^{p}"):
        yield rf"{m}\{f}^{p}({tex})", truth, True
        yield rf"{m}(\{f}({tex}))^{p}", truth, True
        yield rf"{m}\{f}(({tex})^{p})", truth, False
        yield rf"{m}\{f}^{p + 1}({tex})", truth, False
    yield f"{f}({inner})**{p}*{m}", rf"{m}\{f}^{p}\left({tex}\right)", True
    yield rf"{m}\{f}({v}^{p})", f"{m}*{f}({v})**{p}", False
    yield rf"{m}\{f}^{p} {v}", f"{m}*{f}({v})**{p}", True
    yield rf"e^{{{v}^{p}}}", f"exp({v})**{p}", False
    yield rf"e^{{{p}{v}}}", f"exp({v})**{p}", True
    yield rf"(\ln {v})^{p}", f"log({v})**{p}", True
    yield rf"\ln({v}^{p})", f"log({v})**{p}", False
    yield rf"{p}\ln {v}", f"log({v})**{p}", False


def equations(r: Random) -> Iterator[Case]:
    """Equations and products with a unit's letter where the truth is a number; grids and their lines."""
    a, b, c = r.randint(2, 9), r.randint(2, 9), r.randint(1, 30)
    yield f"{a}x+{b}y-{c}=0", "0", False
    yield f"{a}x-{b}y+{c}=0", "0", False
    yield f"{a}x+{b}y={c}", f"{c}", False
    yield f"x^2+y^2-{c * c}=0", "0", False
    yield f"{a}x+{b}y+z-{c}=0", "0", False
    yield f"{a}x-{c}=0", "0", False
    yield f"xy-{c}=0", "0", False
    yield f"m+n={c}", f"{c}", True
    yield f"x+y={c}", f"{c}", True
    yield f"xy = {c}", f"{c}", True
    yield f"x = {c}", f"{c}", True
    yield f"a+b+c = {c + 1}", f"{c}", False
    n, unit = r.randint(2, 99), r.choice("msgh")
    yield f"{n}{unit}^2", f"{n}", False
    yield f"{n}{unit}^3", f"{n}", False
    yield f"{n}{unit}", f"{n}", False
    yield rf"{n}\text{{ {unit}}}", f"{n}", True
    yield f"{n + 1} {unit}", f"{n}", False
    rows = [[r.randint(0, 9) for _ in range(3)] for _ in range(3)]
    grid = "\n".join(" ".join(map(str, row)) for row in rows)
    yield grid + "\n", grid, True
    yield grid.replace("\n", "  \n"), grid, True
    yield grid.replace("\n", " "), grid, False
    yield "\n".join(" ".join(map(str, row)) for row in rows[::-1]), grid, rows == rows[::-1]


FALSE_ACCEPTS = {
    "floors and ceilings": floors,
    "absolute values, roots, logarithms": branches,
    "other bases": literals,
    "durations": durations,
    "temperatures": temperatures,
    "powers behind a bracket": powers,
    "equations, letters of units, grids": equations,
}
