"""An answer that hands the question's formula back has the truth's value, and counts only where the recipe says so."""

import pytest

from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.rewards.math import score

COPIED = [  # (question, answer, truth)
    ("Compute $3+4$.", "3+4", "7"),
    ("Compute $3+4$.", "4+3", "7"),
    ("Compute $3+4$.", "(3+4)", "7"),
    ("Compute $3+4$.", "x = 3+4", "7"),
    ("What is 17 * 23 - 5?", r"17 \cdot 23 - 5", "386"),
    (r"Simplify \(\dfrac{6}{8}\).", r"\frac{6}{8}", r"\frac{3}{4}"),
    (r"Expand $(x+1)^2$.", "(x+1)^2", "x^2+2x+1"),
    (r"Factor $x^2-5x+6$ completely.", "x^2-5x+6", "(x-2)(x-3)"),
    (r"Evaluate \[\log_2 8 + \sqrt{16}.\]", r"\log_2 8+\sqrt{16}", "7"),
    ("Use 8, 4, 6 and 1 to make 24.", "24", "(8-4)*6*1"),
    ("Sort these numbers: 3, 1, 2", "3, 1, 2", "1, 2, 3"),
    ("Write 0.75 as a fraction.", "0.75", r"\frac34"),
    ("Calculate 13/52 as a simplified fraction", "13/52", "1/4"),
]
OWN = [
    ("Compute $3+4$.", "7", "7"),
    ("Compute $3+4$.", "7.0", "7"),
    ("Compute $13+4.5$.", "3+4", "7"),
    ("Which number is larger, 5 or 7?", "7", "7"),
    ("A rope of 1,200 cm is cut.", "1200 cm", "1200"),
    ("Which is right? (A) 0.75 (B) 0.5", "(A) 0.75", "A"),
    ("Which is right? A. Newton B. Pascal", r"\text{A. Newton}", "A"),
    ("Is $x+2$ a factor? Answer yes or no.", "yes", "Yes"),
    ("Let $f(x)=2+x$. Find $f(x)$.", "2+x", "x+2"),
    ("Find the roots of $(x-1)(x-2)$, or say none.", "none", "no solution"),
    ("Expand $(x+1)^2$.", "1+x^2+2x", "x^2+2x+1"),
    ("", "3+4", "7"),
]


@pytest.mark.parametrize(("question", "answer", "truth"), COPIED)
def test_a_copy_in_another_form_is_wrong_where_the_question_is_given(question, answer, truth):
    assert equivalent(answer, truth)
    found = score(rf"\boxed{{{answer}}}", truth, question=question)
    assert (found["acc"], found["score"], found["graded_by"]) == (0.0, -1.0, "copied")
    assert score(rf"\boxed{{{answer}}}", truth)["acc"] == 1.0


@pytest.mark.parametrize(("question", "answer", "truth"), OWN)
def test_an_answer_of_ones_own_counts(question, answer, truth):
    assert score(rf"\boxed{{{answer}}}", truth, question=question)["acc"] == 1.0


def test_a_wrong_answer_is_decided_by_the_rules():
    assert score(r"\boxed{3+5}", "7", question="Compute $3+5$.")["graded_by"] in ("front", "memo")


def test_a_long_question_takes_little_time():
    question = "$x+1$ and " * 100_000
    assert score(r"\boxed{1+3}", "4", question=question)["acc"] == 1.0
