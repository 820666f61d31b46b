"""Rewriting keeps the verdict, perturbation turns it: thousands of generated pairs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.rewards.grader.structure import decide
from retool_mcore.rewards.grader.text import normal_form
from tests.support.grading import metamorphic


@pytest.mark.parametrize("seed", range(3))
def test_generated_pairs(seed):
    wrong = [pair for pair in metamorphic.pairs(seed, 1500) if bool(decide(pair.answer, pair.truth)) is not pair.same]
    assert wrong == []


def test_the_generator_is_seeded_and_makes_both_kinds_by_every_rule():
    cases = metamorphic.pairs(5, 2000)
    assert cases == metamorphic.pairs(5, 2000)
    assert cases != metamorphic.pairs(6, 2000)
    assert 0.25 < sum(pair.same for pair in cases) / len(cases) < 0.6
    assert len({pair.rule for pair in cases}) > 50


@settings(max_examples=150, deadline=None, derandomize=True)
@given(answer=st.text(max_size=30), truth=st.text(max_size=30))
def test_never_raises(answer, truth):
    assert decide(answer, truth) in (True, False, None)


fragments = st.sampled_from(
    [*r"0123456789xyabn+-*/^_=<>(){}[]|!,;:.%$& ", r"\frac", r"\sqrt", r"\text{", r"\pm", r"\cup"]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(fragments, max_size=25).map("".join))
def test_latex_noise_equals_itself_and_never_raises(text):
    assert decide(text, "5 cm") in (True, False, None)
    if normal_form(text):
        assert decide(f" {text} ", text) is True
