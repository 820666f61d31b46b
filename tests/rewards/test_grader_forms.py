"""Forms of one value that answers and data sets write."""

import pytest

from retool_mcore.rewards.grader.structure import decide


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
