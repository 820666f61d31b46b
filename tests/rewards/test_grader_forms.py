"""Forms of one value that answers and data sets write."""

import json
from pathlib import Path

import pytest

from retool_mcore.rewards.grader.structure import decide
from tests.support.grading import fuzz

# {truth: {"same": answers that say it, "other": answers that say something else}}
FORMS = json.loads(Path(fuzz.__file__).with_name("forms.json").read_text())


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"0.\overline{3}", r"\frac13"),
        (r"0.\dot{1}4285\dot{7}", r"\frac{1}{7}"),
        ("0.1(6)", "1/6"),
        (r"-2.\bar 4", r"-\frac{22}{9}"),
        (r"3\mathrm{i}+2", "2+3i"),
        ("2+3j", "2+3i"),
        (r"x \equiv 10 \pmod{7}", r"3 \bmod 7"),
        ("3 (mod 7)", r"3 \pmod 7"),
        (r"n\equiv 1 \text{ or } 3 \pmod 4", r"n \equiv 1, 3 \pmod{4}"),
        (r"\,5\;", "5"),
        (r"\mathbf{\frac{1}{2}}", "1/2"),
        (r"\textcolor{red}{\displaystyle x^2}", "x^2"),
        ("nine hundred ninety-nine thousand", "999000"),
        (r"\text{two and three quarters}", r"\frac{11}{4}"),
        (r"\text{minus twenty-one}", "-21"),
        ("three hours", "180 minutes"),
        ("5!!", "15"),
        (r"\frac{n(n-1)}{2}", r"\binom{n}{2}"),
        (r"\log^2(x)", r"(\log x)^2"),
        (r"\approx 8.24 \text{ mph}", "8.24"),
    ],
)
def test_equal(answer, truth):
    assert decide(answer, truth) is True


def test_every_form_of_a_value_is_that_value():
    assert [
        (answer, truth) for truth, said in FORMS.items() for answer in said["same"] if not decide(answer, truth)
    ] == []


def test_nothing_that_says_something_else_is_accepted():
    assert [(answer, truth) for truth, said in FORMS.items() for answer in said["other"] if decide(answer, truth)] == []


@pytest.mark.parametrize(
    ("answer", "truth", "same"),
    [
        # Identities of powers of e and logarithms of primes are exact, without a value at a point.
        (r"\sin 3x", r"3\sin x-4\sin^3 x", True),
        (r"\cosh^2 t-\sinh^2 t", "1", True),
        (r"\frac{e^{2x}-1}{e^{2x}+1}", r"\tanh x", True),
        (r"\log_{12} 18", r"\frac{\ln 2+2\ln 3}{2\ln 2+\ln 3}", True),
        (r"2^{n+1}\cdot 3^{n}", r"2\cdot 6^n", True),
        (r"e^{-i\pi/3}", r"e^{i\pi/3}", False),
        (r"\ln 5", r"\ln 2+\ln 3", False),
        # A set of real numbers is its intervals, however it is said.
        (r"|x|>3", r"(-\infty,-3)\cup(3,\infty)", True),
        (r"1\le|x|<2", r"(-2,-1]\cup[1,2)", True),
        (r"x>-1 \text{ and } x \ne 2", r"(-1,2)\cup(2,\infty)", True),
        (r"\mathbb{R}\setminus((0,1)\cup\{3\})", r"(-\infty,0]\cup[1,3)\cup(3,\infty)", True),
        (r"[0,2]\cap(1,3)", "(1,2]", True),
        (r"x>-1 \text{ and } y \ne 2", r"(-1,2)\cup(2,\infty)", False),
        # Rows of values and conditions.
        (r"\begin{cases}-x&x<0\\x&x\ge 0\end{cases}", r"\begin{cases}x & \text{if } 0\le x\\-x & x<0\end{cases}", True),
        (r"\begin{cases}-x&x<0\\x&x>0\end{cases}", r"\begin{cases}x & x\ge 0\\-x & x<0\end{cases}", False),
        (r"o(\sqrt{n})", r"O(\sqrt{n})", False),  # capitals count outside of words
    ],
)
def test_exact_forms(answer, truth, same):
    assert decide(answer, truth) is same


def test_a_remark_on_a_pair_is_no_interval():
    assert decide(r"(1,2)\cap(1,3)", "(1,2)") is not True
