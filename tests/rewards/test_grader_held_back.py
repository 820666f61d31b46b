"""The pairs that were held back, and solutions said in other words: what is the same, and what is not."""

import pytest

from retool_mcore.rewards.grader.structure import decide
from tests.support.grading.held_back import SETS, pairs


def matrix(*rows: str) -> str:
    return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"


A, B = matrix("1&2", "3&4"), matrix("5&6", "7&8")
FAMILY = r"x=\frac{\pi}{2}+n \pi, n \in \mathbb{Z}"
OUTSIDE = r"(-\infty,1)\cup(2,\infty)"
SAME = [
    (r"$2 k \pi-\pi / 2$, any integer $k$", r"$2 n \pi-\pi / 2$, any integer $n$"),
    (r"\frac{\pi}{2}+k\pi", FAMILY),
    (r"x=\frac{\pi}{2}+m\pi \text{ for every integer } m", FAMILY),
    (r"x>2 \text{ or } x<1", OUTSIDE),
    (r"x=5 \text{ or } 1<x<2", r"(1,2)\cup\{5\}"),
    (r"x \ne 2, x \ne 1", r"\mathbb{R}\setminus\{1,2\}"),
    (r"\left\{\begin{array}{l}x=2\\y=3\end{array}\right.", "(2,3)"),
    (r"\begin{cases}x=2\\y=3\end{cases}", "x=2, y=3"),
    ("[x=2, y=3]", "(2,3)"),
    ("x_1 = 2, x_2 = 1", "x=1,2"),
    ("C(10,4)", "210"),
    ("{}_{14}C_{2}", "91"),
    (r"6366_{\text{eight}}", "6366_8"),
    (r"23\ \frac{\text{ft}}{\text{s}}", r"23 \mathrm{ft} / \mathrm{sec}"),
    (r"\frac{\ln|7x+7|}{7}", r"\frac17\ln\lvert 7x+7\rvert"),
    (f"{A} + {B}", matrix("6&8", "10&12")),
    (f"{A}-2{B}", matrix("-9&-10", "-11&-12")),
    (f"-{A}", matrix("-1&-2", "-3&-4")),
    (f"{A}{B}", matrix("19&22", "43&50")),
    (rf"{A} \cdot {A}{A}", matrix("37&54", "81&118")),
    (rf"{A}^{{\top}}", matrix("1&3", "2&4")),
    ("n 2^{n-2}", r"n\cdot 2^{n-2}"),
    (r"\frac{1}{16}", r"0\frac{1}{16}"),
    ("108", r"108^{\\circ}"),
    ("150 minutes", r"2 \text{ hours } 30 \text{ minutes}"),
    ("5.5 feet", "5 feet 6 inches"),
    (r"9.8\ \mathrm{m\,s^{-2}}", r"9.8 \text{ m/s}^2"),
    ("the 15th of March, 2020", r"\text{March 15, 2020}"),
    (r"\text{on Tuesday}", "Tue."),
    ("noon", "12:00 p.m."),
    (r"\boxed{\text{on Tuesday}}", "Tue."),
    (r"(n+1)^2 = n^2+2n+1", "n^2+2n+1"),
    (r"S = (n+1)^2 = n^2+2n+1", "(n+1)^2"),
    (r"\text{concave up on } (0,\infty)", r"concave up on $(0, \infty)$"),
]
OTHER = [
    (r"x=\frac{\pi}{2}+n \pi, n \in \mathbb{N}", FAMILY),
    (r"x=\frac{\pi}{2}+n \pi \text{ for no integer } n", FAMILY),
    (r"x=\frac{\pi}{2}+n \pi \text{, n an even integer}", FAMILY),
    (r"x=\frac{\pi}{2}+n k \pi", FAMILY),
    (r"x=\frac{\pi}{2}+2k\pi", FAMILY),
    (r"x<1 \text{ or } y>2", OUTSIDE),
    (r"x<1 \text{ and } x>2", OUTSIDE),
    (r"x<1 \text{ or } x\ge 2", OUTSIDE),
    (r"x \ne 1 \text{ or } x \ne 2", r"x \neq 1, 2"),
    (r"y\ne 1, 2", r"x \neq 1, 2"),
    (r"\begin{cases}x=2\\y=3\end{cases}", "(3,2)"),
    ("x=1, 2", "x=1, y=2"),
    ("x=1, y=2", "x=1,2"),
    ("3 to 5", "[3,5]"),
    (r"\frac{5}{8} & 0", r"\frac58"),
    (f"{B}{A}", matrix("19&22", "43&50")),
    (f"{A}+{B} or {A}", matrix("6&8", "10&12")),
    (rf"{A}+{matrix('1', '2')}", A),
    (rf"{A}\cdot", A),
    (f"{A}+", A),
    (f"{A}+0", A),
    (rf"{A}^{{\top}}", A),
    (r"0 \frac{5}{8}", r"\frac58"),
    ("x^2 3", "3x^2"),
    ("30 minutes 2 hours", "2.5 hours"),
    ("2 hours 30 meters", "2.5 hours"),
    ("2 hours or 30 minutes", "2.5 hours"),
    (r"9.8\ \mathrm{m\,s^{-1}}", r"9.8 \text{ m/s}^2"),
    ("March 5", "March 15"),
    ("n 2^{n-1} = n 2^{n-2}", "n 2^{n-2}"),
    ("2^n = n", "n"),
    ("March 15, 2021", "March 15, 2020"),
    ("March 15 or 16", "March 15"),
    ("12:00 a.m.", "noon"),
    (r"6366_{\text{nine}}", "6366_8"),
    (r"23 \frac{\text{ft}}{\text{min}}", "23 ft/s"),
]


@pytest.mark.parametrize(("answer", "truth", "same"), [(*p, True) for p in SAME] + [(*p, False) for p in OTHER])
def test_said_in_other_words(answer, truth, same):
    assert bool(decide(answer, truth)) is same


# The truth names no unit, and the grader takes it for that of the answer, as docs/grader.md says.
DEBATABLE = {("303 cents", "303")}
# Refused and right: letters as bounds and unit vectors, a matrix by its name, a factorial beyond the limits, an index.
GAPS = {
    (r"k \in [n, \lceil 1.5n \rceil]", r"{n \leq k \leq \lceil \tfrac32n \rceil}"),
    (r"2\mathbf{i}-\mathbf{j}", matrix(" 2 ", " -1 ", " 0 ")),
    ("5I", matrix(" 5 & 0 ", " 0 & 5 ")),
    (r"\frac{4030!}{2016!\,2014!\,2^{4030}}", r"\frac{\binom{4030}{2016}}{2^{4030}}"),
    ("F_{1+n}", "F_{n+1}"),
    (r"x = 7k+3, k \in \mathbb{Z}", r"x \equiv 3 \pmod{7}"),
}


@pytest.mark.parametrize("name", SETS)
def test_no_pair_that_was_held_back_is_decided_wrong(name):
    wrong = {(answer, truth) for answer, truth, same, _ in pairs(name) if bool(decide(answer, truth)) is not same}
    assert wrong <= DEBATABLE | GAPS
