"""The pairs that were held back, and solutions said in other words: what is the same, and what is not."""

import pytest

from benchmarks.rewards.held_back import SETS, pairs
from retool_mcore.rewards.grader.structure import decide

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
    (r"6366_{\text{nine}}", "6366_8"),
    (r"23 \frac{\text{ft}}{\text{min}}", "23 ft/s"),
]


@pytest.mark.parametrize(("answer", "truth", "same"), [(*p, True) for p in SAME] + [(*p, False) for p in OTHER])
def test_said_in_other_words(answer, truth, same):
    assert bool(decide(answer, truth)) is same


# The truth names no unit, and the grader takes it for that of the answer, as docs/grader.md says.
DEBATABLE = {("303 cents", "303")}


@pytest.mark.parametrize("name", SETS)
def test_no_pair_that_was_held_back_is_decided_wrong(name):
    wrong = {(answer, truth) for answer, truth, same, _ in pairs(name) if bool(decide(answer, truth)) is not same}
    assert wrong <= DEBATABLE
