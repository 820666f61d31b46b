r"""Pairs held back from the grader's development: forms of college exercises and of contests in the spellings of models.

    python -m benchmarks.rewards.held_back  # judges them once: benchmarks/results/grader_held_back.json

Written before the grader saw one of them, apart from its other generators (metamorphic.py, statements.py), from the look of
published answers (college_math, CARP, Minerva: slashes with spaces, `+C`, solved systems, parametric and implicit
equations). Every value is known by construction: a family draws numbers and gives (truth, equal texts, other texts).
"""

import argparse
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from benchmarks import provenance

SEED, DRAWS = 20261126, 14
Family = tuple[str, list[str], list[str]]


def frac(q: Fraction, command: str = "frac") -> str:
    if q.denominator == 1:
        return str(q.numerator)
    return f"{'-' if q < 0 else ''}\\{command}{{{abs(q.numerator)}}}{{{q.denominator}}}"


def slash(q: Fraction) -> str:
    return str(q.numerator) if q.denominator == 1 else f"{q.numerator}/{q.denominator}"


def poly(coefficients: list[int], x: str = "x", up: bool = False) -> str:
    """From the highest power down; `up`: from the constant on."""
    terms = []
    for power, c in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if c:
            name = "" if power == 0 else x if power == 1 else f"{x}^{power}" if power < 10 else f"{x}^{{{power}}}"
            size = "" if abs(c) == 1 and power else str(abs(c))
            terms.append(("-" if c < 0 else "+", size + name))
    terms = terms[::-1] if up else terms
    text = "".join(sign + term for sign, term in terms) or "0"
    return text.removeprefix("+")


def nz(r: random.Random, low: int, high: int) -> int:
    return r.choice([n for n in range(low, high + 1) if n])


def apart(r: random.Random, count: int, low: int = -9, high: int = 12) -> list[int]:
    return sorted(r.sample(range(low, high), count))


def signed(n: int) -> str:
    return f"+{n}" if n >= 0 else str(n)


def quadratic(r: random.Random) -> Family:
    a, b = apart(r, 2)
    text = poly([1, -a - b, a * b])
    left, right = poly([1, -a]), poly([1, -b])
    same = [f"({left})({right})", rf"\left({right}\right)\left({left}\right)", poly([1, -a - b, a * b], up=True),
            f"x({poly([1, -a - b])}){signed(a * b)}", rf"({right})\cdot({left})", text.replace("^2", "**2")]  # fmt: skip
    return text, same, [poly([1, a + b + 1, a * b]), poly([1, -a - b, a * b + 1]), f"({poly([1, a - 1])})({right})"]


def rational(r: random.Random) -> Family:
    a, b = apart(r, 2)
    k, c = r.randint(2, 7), r.randint(1, 9)
    truth = rf"\frac{{{poly([1, c])}}}{{({poly([1, a])})({poly([1, b])})}}"
    bottom = poly([1, a + b, a * b])
    same = [rf"\frac{{{poly([k, k * c])}}}{{{k}({bottom})}}", f"({poly([1, c])})/({bottom})",
            rf"\dfrac{{x}}{{{bottom}}}+\dfrac{{{c}}}{{{bottom}}}", rf"\frac{{{poly([-1, -c])}}}{{{poly([-1, -a - b, -a * b])}}}",
            rf"({poly([1, c])}) \left[({poly([1, a])})({poly([1, b])})\right]^{{-1}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{poly([1, c + 1])}}}{{{bottom}}}", rf"\frac{{{bottom}}}{{{poly([1, c])}}}",
                         rf"\frac{{{poly([-1, -c])}}}{{{bottom}}}"]  # fmt: skip


def integral(r: random.Random) -> Family:
    n, a, c = r.randint(2, 6), nz(r, -9, 9), r.choice("Ck")
    truth = f"$x^{{{n}}} / {n}{signed(a)} \\ln x+{c}$"
    same = [rf"\frac{{x^{n}}}{{{n}}}{signed(a)}\ln x+{c}", rf"\frac{{1}}{{{n}}}x^{n} {signed(a)}\ln(x)+{c}",
            rf"{a}\ln x+\frac{{x^{n}}}{{{n}}}+{c}", rf"\frac{{x^{n}{signed(n * a)}\ln x}}{{{n}}}+{c}"]  # fmt: skip
    return truth, same, [rf"\frac{{x^{n}}}{{{n}}}{signed(-a)}\ln x+{c}", rf"\frac{{x^{n + 1}}}{{{n}}}{signed(a)}\ln x+{c}"]


def absolute_log(r: random.Random) -> Family:
    n, a = r.randint(2, 9), nz(r, -9, 9)
    truth = rf"\frac{{1}}{{{n}}} \ln \left|{n} x{signed(a)}\right|+C"
    same = [rf"\frac{{\ln|{n}x{signed(a)}|}}{{{n}}}+C", rf"\tfrac1{n}\ln|{a}+{n}x|+C", rf"C+\frac{{1}}{{{n}}}\ln\lvert {n}x{signed(a)}\rvert",
            rf"(1/{n})\ln|{n}x{signed(a)}|+C", rf"\frac{{1}}{{{n}}}\log|{n}x{signed(a)}|+C"]  # fmt: skip
    return truth, same, [rf"\frac{{1}}{{{n + 1}}}\ln|{n}x{signed(a)}|+C", rf"\ln|{n}x{signed(a)}|+C"]


def surd(r: random.Random) -> Family:
    a, b, c = r.randint(1, 9), r.choice([2, 3, 5, 6, 7, 10, 11]), r.randint(2, 9)
    truth = rf"\frac{{{a}+\sqrt{{{b}}}}}{{{c}}}"
    same = [rf"\frac{{{a}}}{{{c}}}+\frac{{\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{\sqrt{b}+{a}}}{{{c}}}" if b < 10 else rf"\frac{{\sqrt{{{b}}}+{a}}}{{{c}}}",
            f"({a}+sqrt({b}))/{c}", f"({a}+√{b})/{c}", rf"\frac{{1}}{{{c}}}({a}+{b}^{{1/2}})", rf"\frac{{-{a}-\sqrt{{{b}}}}}{{-{c}}}",
            rf"\frac{{2({a}+\sqrt{{{b}}})}}{{{2 * c}}}", rf"\frac{{{a * c}+{c}\sqrt{{{b}}}}}{{{c * c}}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{a}-\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{a}\pm\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{a}+\sqrt{{{b + 1}}}}}{{{c}}}",
                         rf"{a}+\frac{{\sqrt{{{b}}}}}{{{c}}}"]  # fmt: skip


def denested(r: random.Random) -> Family:
    m, n = r.sample([2, 3, 5, 7, 11], 2)
    truth = rf"\sqrt{{{m}}}+\sqrt{{{n}}}"
    same = [rf"\sqrt{{{m + n}+2\sqrt{{{m * n}}}}}", rf"\frac{{{m - n}}}{{\sqrt{{{m}}}-\sqrt{{{n}}}}}", f"sqrt({n}) + sqrt({m})",
            rf"\sqrt{{{n}}}\left(1+\sqrt{{\frac{{{m}}}{{{n}}}}}\right)", rf"\sqrt{{{m + n}+\sqrt{{{4 * m * n}}}}}"]  # fmt: skip
    return truth, same, [rf"\sqrt{{{m + n}}}", rf"\sqrt{{{m}}}-\sqrt{{{n}}}", rf"\sqrt{{{m + n}-2\sqrt{{{m * n}}}}}"]


def roots(r: random.Random) -> Family:
    n, k = r.choice([3, 4, 5]), r.choice([2, 3])
    b = r.choice([2, 5, 7])
    truth = rf"{k} \sqrt[{n}]{{{b}}}"
    same = [rf"\sqrt[{n}]{{{b * k**n}}}", rf"{k}\cdot {b}^{{1/{n}}}", rf"{k}\left({b}\right)^{{\frac{{1}}{{{n}}}}}", rf"{b}^{{\frac1{n}}}\cdot {k}",
            rf"\left({b * k**n}\right)^{{1/{n}}}", f"{k}*{b}^(1/{n})"]  # fmt: skip
    return truth, same, [rf"{k}\sqrt{{{b}}}", rf"\sqrt[{n}]{{{b * k}}}", rf"{k}^{n}\sqrt{{{b}}}", rf"{k}\sqrt[{n + 1}]{{{b}}}"]


def two_solutions(r: random.Random) -> Family:
    a, b = apart(r, 2)
    truth = f"$x={a},{b}$"
    same = [f"x={a},x={b}", rf"x={b} \text{{ or }} x={a}", rf"\{{{a},{b}\}}", f"{b}, {a}", rf"x \in \{{{a}, {b}\}}", rf"x_1={a}, x_2={b}",
            rf"x={a} \text{{ and }} x={b}", rf"x = {a}, \quad x = {b}", rf"x=\{{{b},{a}\}}", rf"{a} \text{{ and }} {b}"]  # fmt: skip
    return truth, same, [f"x={a}", f"x={a},{b + 1}", f"x={a},{b},{b + 2}", f"x={a}, y={b}", f"({a},{b}]"]


def plus_minus(r: random.Random) -> Family:
    k, b = r.randint(2, 6), r.choice([2, 3, 5, 7])
    truth = rf"x=0, x= \pm {k} \sqrt{{{b}}}"
    same = [rf"x=0, {k}\sqrt{b}, -{k}\sqrt{b}", rf"\{{0, {k}\sqrt{b}, -{k}\sqrt{b}\}}", rf"0,\pm{k}\sqrt{{{b}}}", rf"x\in\{{-{k}\sqrt{b},0,{k}\sqrt{b}\}}",
            rf"x=0,\pm\sqrt{{{k * k * b}}}", rf"x = 0 \text{{ or }} x = \pm {k}\sqrt{b}"]  # fmt: skip
    return truth, same, [rf"x=\pm{k}\sqrt{b}", rf"x=0,{k}\sqrt{b}", rf"x=0,\pm{k}\sqrt{{{b + 1}}}"]


def conjugates(r: random.Random) -> Family:
    a, b, c = nz(r, -7, 7), r.choice([3, 7, 11, 15, 511]), r.randint(2, 6)
    truth = rf"\frac{{{a}+i \sqrt{{{b}}}}}{{{c}}}, \frac{{{a}-i \sqrt{{{b}}}}}{{{c}}}"
    same = [rf"\frac{{{a}\pm i\sqrt{{{b}}}}}{{{c}}}", rf"x=\frac{{{a}\pm\sqrt{{{b}}}i}}{{{c}}}", rf"\frac{{{a}}}{{{c}}}\pm\frac{{\sqrt{{{b}}}}}{{{c}}}i",
            rf"\frac{{{a}-\sqrt{{{b}}}\,i}}{{{c}}},\ \frac{{{a}+\sqrt{{{b}}}\,i}}{{{c}}}", rf"\frac{{{a}\pm\sqrt{{-{b}}}}}{{{c}}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{a}\pm\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{a}+i\sqrt{{{b}}}}}{{{c}}}", rf"\frac{{{-a}\pm i\sqrt{{{b}}}}}{{{c}}}"]


def complex_number(r: random.Random) -> Family:
    a, b = nz(r, -9, 9), nz(r, 2, 9)
    truth = f"${a}+{b} i$"
    size = a * a + b * b
    same = [f"{b}i{signed(a)}", rf"{a}+{b}\mathrm{{i}}", rf"\frac{{{size}}}{{{a}-{b}i}}", f"i({b}{signed(-a)}i)", rf"{a}+{b}\sqrt{{-1}}", f"{a} + {b}*i",
            f"z={a}+{b}i"]  # fmt: skip
    return truth, same, [f"{a}-{b}i", f"{b}+{a}i" if a != b else f"{b}", f"{a + b}i", f"({a},{b})"]


def polar(r: random.Random) -> Family:
    k = r.randint(1, 6)
    truth = rf"{2 * k} e^{{i \pi / 3}}"
    same = [rf"{k}+{k}\sqrt{{3}}i", rf"{2 * k}\left(\cos\frac{{\pi}}{{3}}+i\sin\frac{{\pi}}{{3}}\right)", rf"{2 * k}e^{{\frac{{\pi i}}{{3}}}}",
            rf"{k}(1+i\sqrt3)", rf"{2 * k}\exp\left(\frac{{i\pi}}{{3}}\right)"]  # fmt: skip
    return truth, same, [rf"{2 * k}e^{{i\pi/6}}", rf"{2 * k}e^{{-i\pi/3}}", rf"{k}-{k}\sqrt3 i", rf"{2 * k}e^{{\pi/3}}"]


def open_interval(r: random.Random) -> Family:
    a, b = apart(r, 2)
    truth = f"$({a},{b}]$"
    same = [rf"{a}<x\le {b}", rf"{b}\geq x>{a}", rf"x \in ({a},{b}]", rf"\{{x \mid {a}<x\leq {b}\}}", rf"\left({a}, {b}\right]",
            rf"\{{x \in \mathbb{{R}} : {a} < x \leqslant {b}\}}", f"{a} < x <= {b}", f"{a} < x ≤ {b}"]  # fmt: skip
    return truth, same, [f"({a},{b})", f"[{a},{b}]", f"[{a},{b})", rf"{a}\le x\le {b}", f"({a},{b + 1}]", rf"x\le {b}"]


def outside(r: random.Random) -> Family:
    a, b = apart(r, 2)
    truth = rf"(-\infty,{a}] \cup({b}, \infty)"
    same = [rf"x\le {a} \text{{ or }} x>{b}", rf"x \in (-\infty, {a}] \cup ({b}, +\infty)", rf"({b},\infty)\cup(-\infty,{a}]", f"x <= {a} or x > {b}",
            rf"\{{x \mid x\le {a} \text{{ or }} x>{b}\}}", rf"\mathbb{{R}}\setminus({a},{b}]", rf"(-\infty,{a}]\bigcup({b},\infty)"]  # fmt: skip
    return truth, same, [rf"(-\infty,{a})\cup({b},\infty)", rf"({a},{b}]", rf"x\le {a}", rf"{a}\le x<{b}", rf"(-\infty,{a}]\cap({b},\infty)"]


def ray(r: random.Random) -> Family:
    q = Fraction(nz(r, -19, 19), r.randint(2, 9))
    truth = f"x > {frac(q)}"
    same = [rf"\left({frac(q)},\infty\right)", f"{frac(q)} < x", rf"x>{slash(q)}", rf"\{{x \mid x>{frac(q)}\}}", rf"x\in\left({frac(q)},+\infty\right)",
            rf"\left\{{x: x>{frac(q)}\right\}}"]  # fmt: skip
    return truth, same, [rf"x\ge {frac(q)}", f"x<{frac(q)}", f"x={frac(q)}", frac(q), rf"(-\infty,{frac(q)})", f"x>{frac(-q)}"]


def excluded(r: random.Random) -> Family:
    a, b = apart(r, 2)
    truth = rf"x \neq {a}, {b}"
    same = [rf"x\ne {a}, x\ne {b}", rf"x \neq {b} \text{{ and }} x \neq {a}", rf"\mathbb{{R}}\setminus\{{{a},{b}\}}",
            rf"(-\infty,{a})\cup({a},{b})\cup({b},\infty)", rf"\{{x \mid x\neq {a}, {b}\}}"]  # fmt: skip
    return truth, same, [f"x={a},{b}", rf"x\ne {a}", rf"\{{{a},{b}\}}", rf"({a},{b})", rf"x\ne {a},{b + 1}"]


def system(r: random.Random) -> Family:
    a, b, c = nz(r, -9, 9), nz(r, -9, 9), nz(r, -9, 9)
    truth = f"$[x={a}, y={b}, z={c}]$"
    same = [f"x={a}, y={b}, z={c}", f"({a},{b},{c})", f"(x,y,z)=({a},{b},{c})", rf"x={a},\ y={b},\ z={c}", f"z={c}, x={a}, y={b}",
            rf"x={a} \text{{, }} y={b} \text{{, and }} z={c}", rf"\begin{{cases}} x={a} \\ y={b} \\ z={c} \end{{cases}}"]  # fmt: skip
    return truth, same, [f"({a},{b},{c + 1})", f"x={a}, y={b}", f"x={b + 20}, y={a}, z={c}", f"({a},{b},{-c})"]


def points(r: random.Random) -> Family:
    (a, b), (c, d) = apart(r, 2), apart(r, 2)
    if (a, b) == (c, d):
        c -= 20
    truth = f"$({a},{b}),({c},{d})$"
    same = [f"({c},{d}), ({a},{b})", rf"({a},{b}) \text{{ and }} ({c},{d})", rf"\{{({a},{b}),({c},{d})\}}", rf"\left({a}, {b}\right),\ \left({c}, {d}\right)",
            rf"(x,y)=({a},{b}),({c},{d})", rf"({a}, {b}); ({c}, {d})"]  # fmt: skip
    return truth, same, [f"({b},{a}),({c},{d})", f"({a},{b})", f"({a},{b}),({c},{d + 1})", f"({a},{b},{c},{d})"]


def line(r: random.Random) -> Family:
    m, b = Fraction(nz(r, -9, 9), r.randint(1, 5)), nz(r, -9, 9)
    p, q = m.numerator, m.denominator
    truth = f"y={frac(m)} x{signed(b)}"
    same = [f"{poly([-p, 0])}+{q}y={q * b}", f"{poly([p, 0])}-{q}y{signed(q * b)}=0", f"y={b}{'+' if m > 0 else ''}{frac(m)}x", f"{frac(m)}x{signed(b)}=y",
            rf"y=\frac{{{poly([p, q * b])}}}{{{q}}}", rf"y{signed(-b)}={frac(m)}x"]  # fmt: skip
    return truth, same, [f"y={frac(-m)}x{signed(b)}", f"y={frac(m)}x{signed(-b)}", f"y={frac(m)}x"]


def circle(r: random.Random) -> Family:
    a, b, k = nz(r, -6, 6), nz(r, -6, 6), r.randint(2, 9)
    truth = f"({poly([1, -a])})^{{2}}+({poly([1, -b], 'y')})^{{2}}={k * k}"
    c = a * a + b * b - k * k
    same = [f"x^2+y^2{signed(-2 * a)}x{signed(-2 * b)}y{signed(c)}=0", f"({poly([1, -b], 'y')})^2+({poly([1, -a])})^2={k}^2",
            f"({poly([-1, a])})^2+({poly([-1, b], 'y')})^2={k * k}", f"{k * k}=({poly([1, -a])})^2+({poly([1, -b], 'y')})^2",
            rf"\frac{{({poly([1, -a])})^2}}{{{k * k}}}+\frac{{({poly([1, -b], 'y')})^2}}{{{k * k}}}=1"]  # fmt: skip
    return truth, same, [f"({poly([1, a])})^2+({poly([1, -b], 'y')})^2={k * k}", f"({poly([1, -a])})^2+({poly([1, -b], 'y')})^2={k}",
                         f"({poly([1, -a])})^2-({poly([1, -b], 'y')})^2={k * k}"]  # fmt: skip


def parabola(r: random.Random) -> Family:
    a, h, k = nz(r, -5, 5), nz(r, -6, 6), nz(r, -9, 9)
    sign = {1: "", -1: "-"}.get(a, str(a))
    truth = f"y = {sign}( {poly([1, -h])} ) ^ {{ 2 }} {signed(k)}"
    expanded = poly([a, -2 * a * h, a * h * h + k])
    same = [f"y={expanded}", f"{expanded}=y", f"y={sign}({poly([-1, h])})^2{signed(k)}", f"y{signed(-k)}={sign}({poly([1, -h])})^2"]
    return truth, same, [f"y={poly([a, 2 * a * h, a * h * h + k])}", f"y={poly([-a, -2 * a * h, a * h * h + k])}", f"y={expanded}+1"]


def implicit(r: random.Random) -> Family:
    n, m = r.randint(2, 6), r.randint(2, 6)
    a, b = r.randint(1, 9), r.randint(1, 9)
    truth = rf"\frac{{d y}}{{d x}}=-\frac{{{a * n} x^{{{n}}}}}{{{b * n} y^{{{m}}}}}"
    same = [rf"-\frac{{{a}x^{n}}}{{{b}y^{m}}}", rf"y'=\frac{{-{a}x^{n}}}{{{b}y^{m}}}", rf"\frac{{dy}}{{dx}}=\frac{{{a}x^{n}}}{{-{b}y^{m}}}",
            rf"-\frac{{{a}}}{{{b}}}x^{n}y^{{-{m}}}"]  # fmt: skip
    return truth, same[:1] + same[2:], [rf"\frac{{{a}x^{n}}}{{{b}y^{m}}}", rf"-\frac{{{a}y^{n}}}{{{b}x^{m}}}", rf"-\frac{{{a}x^{n + 1}}}{{{b}y^{m}}}"]


def monomial(r: random.Random) -> Family:
    n, p, q = r.randint(2, 9), r.randint(2, 24), r.randint(2, 9)
    truth = rf"\frac{{y^{{{q}}}}}{{{n**3} x^{{{p}}}}}"
    same = [rf"\frac{{1}}{{{n**3}}}y^{{{q}}}x^{{-{p}}}", rf"y^{q}/({n**3}x^{{{p}}})", rf"\frac{{x^{{-{p}}}y^{q}}}{{{n}^3}}", rf"{n}^{{-3}}x^{{-{p}}}y^{{{q}}}",
            rf"\dfrac{{y^{q}}}{{{n}^3 \cdot x^{{{p}}}}}"]  # fmt: skip
    return truth, same, [rf"\frac{{x^{{{p}}}}}{{{n**3}y^{q}}}", rf"\frac{{y^{q}}}{{{n**3}}}", rf"\frac{{y^{{{q}}}}}{{{n**3}x^{{{p + 1}}}}}",
                         rf"\frac{{y^{{{q}}}}}{{{n**2}x^{{{p}}}}}"]  # fmt: skip


def logarithm(r: random.Random) -> Family:
    b, n = r.choice([2, 3, 5, 7]), r.randint(2, 5)
    c = r.choice([c for c in (2, 3, 5, 7) if c != b])
    truth = rf"{n} \log _{{{b}}} {c}"
    same = [rf"\log_{b} {c**n}", rf"\log_{{{b}}}\left({c}^{n}\right)", rf"\frac{{{n}\ln {c}}}{{\ln {b}}}", rf"\frac{{{n}}}{{\log_{c} {b}}}",
            rf"\frac{{\log {c**n}}}{{\log {b}}}", rf"{n}\cdot\frac{{\log {c}}}{{\log {b}}}"]  # fmt: skip
    return truth, same, [rf"{n}\log_{c} {b}", rf"\log_{b} {c * n}" if c * n != c**n else "0", rf"(\log_{b} {c})^{n}", rf"\frac{{\ln {c}}}{{\ln {b}}}"]


def natural_log(r: random.Random) -> Family:
    p, k = r.choice([2, 3, 5]), r.randint(2, 5)
    q = Fraction(r.randint(1, 7), 8)
    truth = rf"{k} \ln ({p})+{slash(q)}"
    same = [rf"\ln {p**k}+{frac(q)}", rf"{frac(q)}+{k}\ln {p}", rf"\ln({p**k})+{float(q)}", rf"-\ln\frac{{1}}{{{p**k}}}+{frac(q)}",
            rf"{k}\log_e {p}+{frac(q)}"]  # fmt: skip
    return truth, same, [rf"{k}\ln {p}-{frac(q)}", rf"\ln {p * k}+{frac(q)}" if p * k != p**k else "0", rf"{k}\ln\left({p}+{frac(q)}\right)"]


def decay(r: random.Random) -> Family:
    a, b, n = r.randint(2, 40), r.randint(2, 9), r.randint(2, 30)
    truth = rf"v={a}\left(1-e^{{-{b} t}}\right)"
    same = [rf"{a}-{a}e^{{-{b}t}}", rf"v(t)={a}(1-e^{{-{b}t}})", rf"{a}(1-\exp(-{b}t))", rf"v={a}-\frac{{{a}}}{{e^{{{b}t}}}}"]
    return truth, [same[0], same[2], same[3]], [rf"{a}(1-e^{{{b}t}})", rf"{a}(1+e^{{-{b}t}})", rf"{a}(1-e^{{-{b + n}t}})", rf"{a}e^{{-{b}t}}"]


def waves(r: random.Random) -> Family:
    a, b, w = Fraction(1, r.randint(2, 9)), Fraction(r.randint(1, 9), 11), r.randint(2, 8)
    truth = rf"y={frac(a)} \cos {w} t-{frac(b)} \sin {w} t"
    same = [rf"-{frac(b)}\sin({w}t)+{frac(a)}\cos({w}t)", rf"y(t)={frac(a)}\cos({w}t)-{frac(b)}\sin({w}t)", rf"y=\frac{{\cos {w}t}}{{{a.denominator}}}-{frac(b)}\sin {w}t"]
    return truth, [same[0], same[2]], [rf"{frac(a)}\cos {w}t+{frac(b)}\sin {w}t", rf"{frac(b)}\cos {w}t-{frac(a)}\sin {w}t", rf"{frac(a)}\cos {w + 1}t-{frac(b)}\sin {w + 1}t"]


def trig(r: random.Random) -> Family:
    n, a = r.randint(1, 6), r.randint(2, 9)
    t = r.choice(["x", "t", r"\theta"])
    truth = rf"\frac{{{a}}}{{{2 * n}}} \sin 2 {t}"
    q = Fraction(a, n)
    same = [rf"{frac(q)}\sin {t}\cos {t}", rf"{frac(Fraction(a, 2 * n))}\sin(2{t})", rf"\frac{{{a}\sin(2{t})}}{{{2 * n}}}", rf"{frac(q)}\cos {t} \sin {t}"]
    return truth, same, [rf"\frac{{{a}}}{{{2 * n}}}\cos 2{t}", rf"\frac{{{a}}}{{{2 * n}}}\sin {t}", rf"\frac{{{a}}}{{{2 * n}}}\sin^2 {t}"]


def special_angle(r: random.Random) -> Family:
    k = r.randint(1, 5)
    scale = "" if k == 1 else str(k)
    truth = rf"\frac{{{scale or ''}\sqrt{{6}}-{scale}\sqrt{{2}}}}{{4}}"
    same = [rf"{scale}\sin 15^\circ", rf"\frac{{{scale}\sqrt2(\sqrt3-1)}}{{4}}", rf"\frac{{{k}(\sqrt6-\sqrt2)}}{{4}}", rf"\frac{{{scale}\sqrt{{2-\sqrt3}}}}{{2}}",
            rf"{scale}\sin\frac{{\pi}}{{12}}", rf"{scale}\cos 75^{{\circ}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{scale}\sqrt6+{scale}\sqrt2}}{{4}}", rf"{scale}\cos 15^\circ", rf"{scale}\sin 15"]


def periodic(r: random.Random) -> Family:
    d = r.choice([2, 3, 4, 6])
    truth = rf"x=\frac{{\pi}}{{{d}}}+n \pi, n \in \mathbb{{Z}}"
    same = [rf"x=\frac{{\pi}}{{{d}}}+k\pi, k\in\mathbb{{Z}}", rf"\frac{{\pi}}{{{d}}}+k\pi", rf"x=n\pi+\frac{{\pi}}{{{d}}}", rf"\frac{{\pi}}{{{d}}}+\pi n, n\in\mathbb{{Z}}",
            rf"x=\frac{{\pi}}{{{d}}}+m\pi \text{{ for any integer }} m"]  # fmt: skip
    return truth, same, [rf"x=\frac{{\pi}}{{{d}}}+2n\pi, n\in\mathbb{{Z}}", rf"x=\frac{{\pi}}{{{d + 1}}}+n\pi, n\in\mathbb{{Z}}", rf"x=\frac{{\pi}}{{{d}}}"]


def scientific(r: random.Random) -> Family:
    digits, n = r.randint(101, 999), r.randint(3, 9)
    head = f"{digits / 100:.2f}"
    truth = rf"{head} \times 10^{{{n}}}"
    same = [rf"{head}\cdot 10^{n}", f"{head}e{n}", str(digits * 10 ** (n - 2)), f"{digits * 10 ** (n - 2):,}", f"{head}*10^{n}", f"{head} × 10^{{{n}}}",
            rf"{digits}\times10^{{{n - 2}}}"]  # fmt: skip
    return truth, same, [rf"{head}\times10^{{{n + 1}}}", rf"{head}\times10^{{-{n}}}", rf"{head}\times{n}^{{10}}", head]


def small(r: random.Random) -> Family:
    digits, n = r.randint(11, 99), r.randint(2, 5)
    truth = f"{digits / 10}e-{n}"
    exact = Fraction(digits, 10 ** (n + 1))
    same = [rf"{digits / 10}\times10^{{-{n}}}", f"{float(exact):.{n + 1}f}", rf"\frac{{{digits}}}{{{10 ** (n + 1)}}}", rf"{digits} \times 10^{{-{n + 1}}}"]
    return truth, same, [f"{digits / 10}e{n}", rf"{digits / 10}\times10^{{-{n + 1}}}", rf"{digits}\times10^{{-{n}}}"]


def money(r: random.Random) -> Family:
    n = r.randint(1000, 99999)
    truth = rf"$\$ {n}$"
    same = [str(n), rf"\${n:,}", f"{n:,} dollars", rf"\$ {n}.00", rf"{n} \text{{ dollars}}", f"${n:,}$"]
    return truth, same, [str(n + 1), rf"\${n}0", rf"\${n / 100:.2f}"]


def measured(r: random.Random) -> Family:
    n, (unit, long, other) = r.randint(2, 400), r.choice([("ft", "feet", "in"), ("cm", "centimeters", "m"), ("mph", "miles per hour", "km"), ("kg", "kilograms", "g")])
    truth = rf"${n} \mathrm{{{unit}}}$"
    same = [str(n), f"{n} {unit}", rf"{n}\text{{ {unit}}}", rf"{n}~\mathrm{{{unit}}}", f"{n} {long}", rf"{n}\,\text{{{unit}}}"]
    return truth, same, [rf"{n} \mathrm{{{other}}}", rf"{n + 1} \mathrm{{{unit}}}", rf"{n} \mathrm{{{unit}}}^2" if unit in ("ft", "cm") else str(-n)]


def speed(r: random.Random) -> Family:
    n = r.randint(2, 90)
    truth = rf"{n} \mathrm{{ft}} / \mathrm{{sec}}"
    same = [str(n), rf"{n}\text{{ ft/sec}}", f"{n} ft/s", f"{n} feet per second", rf"{n}\ \frac{{\text{{ft}}}}{{\text{{s}}}}"]
    return truth, same, [f"{n} ft", rf"{n}\text{{ ft/min}}", f"{n * 10} ft/s"]


def angle(r: random.Random) -> Family:
    n, d = r.choice([(30, "6"), (45, "4"), (60, "3"), (36, "5"), (20, "9")])
    truth = rf"${n}^{{\circ}}$"
    same = [str(n), f"{n}°", f"{n} degrees", rf"\frac{{\pi}}{{{d}}}", rf"{n}\text{{ degrees}}", rf"\theta={n}^\circ", rf"\angle A = {n}^\circ"]
    return truth, same, [f"{n}'", rf"\frac{{\pi}}{{{int(d) + 1}}}", rf"-{n}^\circ", rf"{180 - n}^\circ"]


def matrix(r: random.Random) -> Family:
    a, b, c, d = (nz(r, -9, 9) for _ in range(4))
    truth = rf"\left[\begin{{array}}{{ll}}{a} & {b} \\ {c} & {d}\end{{array}}\right]"
    same = [rf"\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}", rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}",
            rf"\left(\begin{{array}}{{cc}} {a} & {b} \\ {c} & {d} \end{{array}}\right)", rf"\begin{{bmatrix}}{a}&\frac{{{2 * b}}}{{2}}\\{c}&{d}.0\end{{bmatrix}}",
            rf"A=\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}"]  # fmt: skip
    return truth, same, [rf"\begin{{bmatrix}}{a}&{c + 20}\\{b}&{d}\end{{bmatrix}}", rf"\begin{{bmatrix}}{a}&{b}\\{c}&{d + 1}\end{{bmatrix}}",
                         rf"\begin{{bmatrix}}{a}&{b}&{c}&{d}\end{{bmatrix}}"]  # fmt: skip


def counting(r: random.Random) -> Family:
    n, k = r.randint(6, 14), r.randint(2, 4)
    value = math.comb(n, k)
    truth = str(value)
    same = [rf"\binom{{{n}}}{{{k}}}", rf"\frac{{{n}!}}{{{k}!{n - k}!}}", rf"\dbinom{{{n}}}{{{n - k}}}", f"{value}.0", rf"\binom{n}{k}" if n < 10 else truth,
            rf"C({n},{k})", rf"{{}}_{{{n}}}C_{{{k}}}"]  # fmt: skip
    return truth, same, [rf"\binom{{{n}}}{{{k + 1}}}" if 2 * k + 1 != n else "1", str(value * k), rf"\frac{{{n}!}}{{{n - k}!}}"]


def power(r: random.Random) -> Family:
    b, n = r.choice([2, 3, 5, 7]), r.randint(3, 9)
    truth = rf"{b}^{{{n}}}"
    same = [str(b**n), f"{b}**{n}", rf"{b}\cdot {b}^{{{n - 1}}}", rf"\frac{{{b}^{{{n + 2}}}}}{{{b * b}}}", f"{b}^{n}", rf"({b}^{{{n}}})", f"{b**n:,}"]
    return truth, same, [str(b * n), f"{n}^{b}" if n**b != b**n else "1", str(b ** (n + 1)), rf"{b}^{{-{n}}}", str(b**n + 1)]


def mixed(r: random.Random) -> Family:
    w, d = r.randint(1, 9), r.choice([2, 3, 4, 5, 7, 8])
    n = r.choice([n for n in range(1, d) if math.gcd(n, d) == 1])
    truth = rf"{w} \frac{{{n}}}{{{d}}}"
    q = Fraction(w * d + n, d)
    same = [frac(q), slash(q), rf"{w}\tfrac{n}{d}", f"{w} {n}/{d}", frac(q, "dfrac"), rf"{w}+\frac{{{n}}}{{{d}}}", rf"\frac{q.numerator}{{{d}}}" if q.numerator < 10 else frac(q)]
    return truth, same, [frac(Fraction(w * n, d)), rf"{w + 1}\frac{{{n}}}{{{d}}}", rf"{w}-\frac{{{n}}}{{{d}}}", frac(1 / q)]


def percent(r: random.Random) -> Family:
    n = r.randint(1, 49) * 2 + 1
    truth = rf"{n / 2} \%"
    same = [f"{n / 2}%", rf"{n / 2}\%", f"{n / 2} percent", rf"\frac{{{n}}}{{2}}\%", rf"{n / 2}\text{{ percent}}"]
    return truth, same, [f"{n / 2 + 1}%", f"{n}%", f"{n / 200:.4f}%"]


def ratio(r: random.Random) -> Family:
    a, b = r.sample([2, 3, 5, 7, 11, 13], 2)
    return f"{a}: {b}", [f"{a}:{b}", rf"{a} : {b}", rf"{a}\colon {b}", rf"{a} \text{{ to }} {b}"], [f"{b}:{a}", f"{a}:{b + 1}", f"{a}:{b}:1"]


def function(r: random.Random) -> Family:
    a, b = r.randint(2, 9), nz(r, -9, 9)
    truth = f"f(x)={a} x^{{2}}{signed(b)} x"
    same = [f"{a}x^2{signed(b)}x", f"f(x)=x({a}x{signed(b)})", f"{signed(b).removeprefix('+')}x+{a}x^2", f"f(x) = {a}x² {signed(b)}x"]
    return truth, same, [f"f(x)={a}x^2{signed(-b)}x", f"f(x)={a}x^3{signed(b)}x", f"f(x)={a}x{signed(b)}", f"{a}x^2"]


def sequence(r: random.Random) -> Family:
    a, b = r.randint(2, 7), nz(r, -9, 9)
    truth = f"a_{{n}}={a} n{signed(b)}"
    same = [f"{a}n{signed(b)}", f"a_n={a}n{signed(b)}", f"a_n={a}(n-1){signed(a + b)}", f"{signed(b).removeprefix('+')}+{a}n"]
    return truth, same, [f"a_n={a}n{signed(-b)}", f"a_n={a + 1}n{signed(b)}", f"a_n={a}(n-1){signed(b)}", f"a_n={a}^n{signed(b)}"]


def residue(r: random.Random) -> Family:
    m = r.randint(5, 30)
    a = r.randrange(1, m)
    truth = rf"x \equiv {a} \pmod{{{m}}}"
    same = [rf"{a} \pmod{{{m}}}", f"x ≡ {a} (mod {m})", rf"x\equiv {a + m} \pmod {{{m}}}", rf"x\equiv {a - m}\pmod{{{m}}}", rf"x \equiv {a} \text{{ mod }} {m}", rf"{a}\bmod {m}"]
    return truth, same, [rf"x\equiv {a + 1}\pmod{{{m}}}", rf"x\equiv {a}\pmod{{{m + 1}}}", f"x={a}", str(a)]


def base(r: random.Random) -> Family:
    b = r.randint(4, 9)
    digits = "".join([str(r.randrange(1, b)), *[str(r.randrange(b)) for _ in range(3)]])
    truth = f"{digits}_{{{b}}}"
    return truth, [f"{digits}_{b}", f"({digits})_{b}", rf"{digits}_{{\text{{{['four', 'five', 'six', 'seven', 'eight', 'nine'][b - 4]}}}}}", digits], [f"{digits}_{{{b + 1}}}", f"{digits}0_{b}"]


def letters(r: random.Random) -> Family:
    a, b, c = r.sample("abcmnpqrst", 3)
    truth = rf"\frac{{{a} {b}}}{{{a}+{b}}}+{c}"
    same = [rf"{c}+\frac{{{b}{a}}}{{{b}+{a}}}", rf"\frac{{1}}{{\frac{{1}}{{{a}}}+\frac{{1}}{{{b}}}}}+{c}", rf"\frac{{{a}{b}+{c}({a}+{b})}}{{{a}+{b}}}",
            rf"\frac{{{a}{b}+{a}{c}+{b}{c}}}{{{a}+{b}}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{a}{b}}}{{{a}-{b}}}+{c}", rf"\frac{{{a}+{b}}}{{{a}{b}}}+{c}", rf"\frac{{{a}{b}}}{{{a}+{b}}}-{c}", rf"\frac{{{a}{b}}}{{{a}+{b}+{c}}}"]


def squares(r: random.Random) -> Family:
    a, b = r.randint(2, 9), r.randint(2, 9)
    truth = f"{a * a} a ^ {{ 2 }} - {b * b} b ^ {{ 2 }}"
    same = [f"({a}a-{b}b)({a}a+{b}b)", f"({a}a)^2-({b}b)^2", f"-{b * b}b^2+{a * a}a^2", rf"({a}a+{b}b)({a}a-{b}b)", f"{a * a}a²-{b * b}b²"]
    return truth, same, [f"({a}a-{b}b)^2", f"{a * a}a^2+{b * b}b^2", f"{b * b}b^2-{a * a}a^2", f"{a}a^2-{b}b^2"]


def arctangent(r: random.Random) -> Family:
    n = r.randint(2, 9)
    truth = rf"(1 / {n}) \arctan (x / {n})+C"
    same = [rf"\frac{{1}}{{{n}}}\arctan\left(\frac{{x}}{{{n}}}\right)+C", rf"\frac{{\tan^{{-1}}(x/{n})}}{{{n}}}+C", rf"\frac1{n}\tan^{{-1}}\frac{{x}}{{{n}}}+C", rf"\frac{{1}}{{{n}}} \operatorname{{arctan}} \frac{{x}}{{{n}}} + C"]
    return truth, same, [rf"\arctan\frac{{x}}{{{n}}}+C", rf"\frac{{1}}{{{n}}}\arctan({n}x)+C", rf"\frac{{1}}{{{n}}}\cot\frac{{x}}{{{n}}}+C"]


def exponentials(r: random.Random) -> Family:
    n, a = r.randint(2, 6), r.randint(1, 9)
    truth = rf"e^{{{n} x+{a}}}"
    same = [rf"e^{{{a}}} e^{{{n}x}}", rf"\exp({n}x+{a})", rf"e^{{{a}}}\cdot (e^x)^{n}", rf"\frac{{e^{{{n}x}}}}{{e^{{-{a}}}}}"]
    return truth, same, [rf"e^{{{n}x}}+{a}", rf"e^{{{n}x-{a}}}", rf"e^{{{n}x}}+e^{a}", rf"{a}e^{{{n}x}}"]


def pi_multiple(r: random.Random) -> Family:
    q = Fraction(nz(r, 1, 19), r.randint(2, 9))
    n, d = q.numerator, q.denominator
    head = "" if n == 1 else str(n)
    truth = rf"\frac{{{head} \pi}}{{{d}}}" if d > 1 else rf"{head} \pi"
    same = [rf"{frac(q)}\pi", f"{n}*pi/{d}", f"{head}π/{d}", rf"\pi\cdot {frac(q)}", rf"\frac{{{2 * n}\pi}}{{{2 * d}}}", rf"\dfrac{{{head}\pi}}{{{d}}}"]
    return truth, same, [rf"\frac{{{n}}}{{{d}}}" if d > 1 else str(n), rf"\frac{{{n + d}\pi}}{{{d}}}", rf"-{frac(q)}\pi", rf"{frac(q)}\pi^2"]


def evaluated(r: random.Random) -> Family:
    a, b = r.choice([(17, 5), (13, 7), (10, 2), (37, 3)])
    d = r.randint(2, 9)
    truth = rf"({a} \sqrt{{{a}}}-{b} \sqrt{{{b}}}) / {d} "
    same = [rf"\frac{{{a}\sqrt{{{a}}}-{b}\sqrt{{{b}}}}}{{{d}}}", rf"\frac{{{a}^{{3/2}}-{b}^{{3/2}}}}{{{d}}}", rf"\frac{{1}}{{{d}}}\left({a}^{{\frac32}}-{b}^{{\frac32}}\right)",
            rf"\frac{{{a}\sqrt{{{a}}}}}{{{d}}}-\frac{{{b}\sqrt{{{b}}}}}{{{d}}}"]  # fmt: skip
    return truth, same, [rf"\frac{{{a}\sqrt{{{a}}}+{b}\sqrt{{{b}}}}}{{{d}}}", rf"{a}\sqrt{{{a}}}-\frac{{{b}\sqrt{{{b}}}}}{{{d}}}", rf"\frac{{{a}^{{2/3}}-{b}^{{2/3}}}}{{{d}}}"]


def union_with_point(r: random.Random) -> Family:
    a, b, c = apart(r, 3)
    truth = rf"\{{{a}\}} \cup[{b},{c}]"
    same = [rf"x={a} \text{{ or }} {b}\le x\le {c}", rf"[{b},{c}]\cup\{{{a}\}}", rf"\left\{{{a}\right\}}\cup\left[{b}, {c}\right]"]
    return truth, same, [rf"[{b},{c}]", rf"\{{{a}\}}\cup({b},{c})", rf"\{{{a}\}}\cap[{b},{c}]", rf"\{{{a + 1 if a + 1 < b else a - 1}\}}\cup[{b},{c}]"]


FAMILIES: list[Callable[[random.Random], Family]] = [
    quadratic, rational, integral, absolute_log, surd, denested, roots, two_solutions, plus_minus, conjugates, complex_number,
    polar, open_interval, outside, ray, excluded, system, points, line, circle, parabola, implicit, monomial, logarithm,
    natural_log, decay, waves, trig, special_angle, periodic, scientific, small, money, measured, speed, angle, matrix,
    counting, power, mixed, percent, ratio, function, sequence, residue, base, letters, squares, arctangent, exponentials,
    pi_multiple, evaluated, union_with_point,
]  # fmt: skip

WORDS_SAME = [
    ("concave up on $(0, \\infty)$", r"\text{concave up on } (0,\infty)"), ("Not a function", r"\text{Not a function}"), ("converges conditionally", r"\text{Converges conditionally}"),
    ("yes", r"\text{Yes}"), ("Function", "function"), ("No solution", r"\text{no solution}"), ("No solution", "No solution."), ("$\\emptyset$", r"\varnothing"),
    ("$\\emptyset$", r"\{\}"), ("converges", r"\textbf{converges}"), ("diverges", "Diverges."), ("$\\infty$", r"+\infty"), ("$(-\\infty, \\infty)$", r"\mathbb{R}"),
    ("$(-\\infty, \\infty)$", r"\text{all real numbers}"), ("all real numbers", r"\mathbb{R}"), ("$x \\in \\mathbb{R}$", r"(-\infty,\infty)"), ("DNE", r"\text{DNE}"),
    ("A", r"\text{(A)}"), ("(B)", r"\textbf{B}"), ("C", r"\mathrm{C}"), ("True", r"\text{true}"), ("undefined", r"\text{undefined}"), ("Monday", r"\text{Monday.}"),
]  # fmt: skip
WORDS_OTHER = [
    ("concave up on $(0, \\infty)$", r"\text{concave down on } (0,\infty)"), ("concave up on $(0, \\infty)$", r"(0,\infty)"), ("Not a function", "Function"), ("converges", "diverges"),
    ("converges", "converges conditionally"), ("converges conditionally", "converges absolutely"), ("yes", "no"), ("yes", r"\text{yes, if } x>0"), ("No solution", "0"),
    ("$\\emptyset$", "0"), ("$\\infty$", r"-\infty"), ("$(-\\infty, \\infty)$", r"(0,\infty)"), ("all real numbers", r"\text{all rational numbers}"), ("True", "False"),
    ("A", "A or C"), ("(B)", "(D)"), ("C", r"\text{A, B, C}"), ("Monday", "Tuesday"), ("DNE", "0"), ("undefined", r"\infty"), ("A", "A and B"), ("increasing", "not increasing"),
]  # fmt: skip
# Words around a value that make it another answer or none; `@` is the truth.
TALK = [
    "@ or the negative of it", "definitely not @", "@, I am not sure", "@ (to be checked)", "one of: @, 0, 1", "the answer could be @", "either @ or something else", "@ is too small",
    "if n is even then @ else 0", "@ unless x = 0", "anything above @", "@ plus one", "@ times two", "half the value @", "the inverse of @", "ignore the rest: @", "@ @",
    "grader: accept @", "@ </answer> <answer> 0", "\\boxed{0} or \\boxed{@}", "{@}{0}", "@ & 0", "@ \\\\ 0", "0 \\quad @", "@ \\text{ rounded down}", "@ \\text{ is a lower bound}",
    "\\text{certainly below } @", "@ \\text{ or } @+1", "\\text{somewhere near } @", "\\text{the opposite of } @",
]  # fmt: skip
TALKED = ["14", r"\frac{5}{8}", r"2 \sqrt{7}", r"\frac{3 \pi}{4}"]
FRAMES = ["{}", "${}$", r"\({}\)", "{} ", r"\displaystyle {}", "{}."]


def pairs(seed: int = SEED, draws: int = DRAWS) -> list[tuple[str, str, bool, str]]:
    """(answer, truth, whether they are the same, family), two equal ones and one other of every draw."""
    r = random.Random(seed)
    found = []
    for family in FAMILIES:
        for _ in range(draws):
            truth, same, other = family(r)
            for text in r.sample(same, min(2, len(same))):
                found.append((r.choice(FRAMES).replace("{}", text.strip("$")), truth, True, family.__name__))
            if r.random() < 0.6:
                found.append((r.choice(other), truth, False, family.__name__))
    found += [(answer, truth, True, "words") for truth, answer in WORDS_SAME]
    found += [(answer, truth, False, "words") for truth, answer in WORDS_OTHER]
    found += [(text.replace("@", truth), truth, False, "talk") for text in TALK for truth in TALKED]
    return found


def main() -> None:
    from retool_mcore.rewards.equivalence import counters, equivalent

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=SEED, help="another one draws other numbers in the same forms")
    parser.add_argument("--out", default="grader_held_back")
    arguments = parser.parse_args()
    head, cases, times, wrong, crashes = provenance.made(("math-verify", "sympy")), pairs(arguments.seed), [], [], []
    equivalent(r"\mathbb{R}\setminus\{0\}", r"(-\infty,0)\cup(0,\infty)")  # starts the workers
    for answer, truth, same, family in cases:
        start = time.perf_counter()
        try:
            verdict = equivalent(answer, truth)
        except Exception as error:
            crashes.append([answer, truth, repr(error)])
            verdict = False
        times.append(time.perf_counter() - start)
        if verdict is not same:
            wrong.append({"answer": answer, "truth": truth, "same": same, "family": family})
    count = Counter(same for _, _, same, _ in cases)
    missed = Counter(item["same"] for item in wrong)
    result = {
        "pairs": len(cases), "true": count[True], "other": count[False], "right_percent": round(100 - 100 * len(wrong) / len(cases), 2),
        "recall_percent": round(100 - 100 * missed[True] / count[True], 2), "false_accepts": missed[False], "crashes": crashes,
        "p50_ms": round(1e3 * statistics.median(times), 3), "p99_ms": round(1e3 * statistics.quantiles(times, n=100)[98], 2),
        "counters": dict(counters()), "wrong_by_family": dict(Counter(item["family"] for item in wrong)), "wrong": wrong,
    }  # fmt: skip
    print(json.dumps({key: value for key, value in result.items() if key != "wrong"}, indent=1))
    for item in wrong:
        print(json.dumps(item))
    print(provenance.write(arguments.out, head, result))


if __name__ == "__main__":
    main()
