from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.reward.exact import MAX_CHARS, decide


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("42", "42"),
        ("042", "42"),
        ("+42", "42"),
        ("$42$", "42"),
        (r"\(42\)", "42"),
        ("'42'", "42"),
        ("42.", "42"),
        ("42.0", "42"),
        ("1,234", "1234"),
        ("-1,234,567", "-1234567"),
        (r"1{,}234", "1234"),
        (r"1\,234", "1234"),
        (r"1,\!234", "1234"),
        ("\u22125", "-5"),
        ("0.5", r"\frac{1}{2}"),
        (".5", "1/2"),
        ("2/4", r"\dfrac12"),
        (r"-\frac{1}{2}", r"\frac{-1}{2}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"2 \sqrt{3}", r"2\sqrt{3}"),
        ("9" * 200, "9" * 200),
    ],
)
def test_equal(answer, truth):
    assert decide(answer, truth) is True
    assert decide(truth, answer) is True


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("42", "43"),
        ("-5", "5"),
        ("1/2", "1/3"),
        ("", "5"),
        ("  ", "5"),
        ("5", ""),
        ("$$", "5"),
        ("1" * (MAX_CHARS + 1), "5"),
    ],
)
def test_different(answer, truth):
    assert decide(answer, truth) is False


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("0.333333", "1/3"),  # a rounded value may be meant
        ("3 1/2", "31/2"),
        ("1 2", "12"),
        (r"3\,1/2", "31/2"),
        ("12,34", "1234"),
        ("0,123", "123"),
        ("1/0", "5"),
        ("50%", "0.5"),
        ("x=5", "5"),
        ("2,1", "1,2"),
        (r"\leftarrow", "arrow"),
        ("9" * 200, "8" * 200),
        ("\u0665", "5"),  # a digit of another script
    ],
)
def test_left_to_algebra(answer, truth):
    assert decide(answer, truth) is None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(a=st.fractions(max_denominator=50), b=st.fractions(max_denominator=50))
def test_fractions_are_equal_as_text_exactly_when_they_are_as_numbers(a: Fraction, b: Fraction):
    assert decide(f"\\frac{{{a.numerator}}}{{{a.denominator}}}", f"{b.numerator}/{b.denominator}") is (a == b)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(answer=st.text(max_size=30), truth=st.text(max_size=30))
def test_never_raises_and_is_symmetric(answer, truth):
    assert decide(answer, truth) is decide(truth, answer)
