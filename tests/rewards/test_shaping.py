import math

import pytest

from retool_mcore.rewards.shaping import keep_by_accuracy, keep_group, soft_overlong


@pytest.mark.parametrize(
    ("length", "penalty"),
    [
        (0, 0.0),
        (16384, 0.0),
        (16385, -1 / 4096),
        (17408, -0.25),
        (18432, -0.5),
        (20479, -4095 / 4096),
        (20480, -1.0),
        (20481, -1.0),
        (10**6, -1.0),
    ],
)
def test_soft_overlong_with_the_papers_lengths(length, penalty):
    assert soft_overlong(length, max_length=20480, cache=4096) == penalty


@pytest.mark.parametrize(("length", "max_length", "cache"), [(-1, 10, 5), (1, 10, 0), (1, 10, 11)])
def test_soft_overlong_refuses_impossible_lengths(length, max_length, cache):
    with pytest.raises(ValueError, match="need 0 < cache"):
        soft_overlong(length, max_length, cache)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [([1.0, -1.0], True), ([-1.0, -1.0, -1.0, 0.5], True), ([1.0, 1.0], False), ([-1.0] * 16, False), ([1.0], False)],
)
def test_groups_with_equal_rewards_are_dropped(scores, kept):
    assert keep_group(scores) is kept


@pytest.mark.parametrize(
    ("correct", "of", "kept"),
    [(0, 20, False), (1, 20, False), (2, 20, True), (15, 20, True), (16, 20, False), (20, 20, False)],
)
def test_accuracy_range_excludes_both_ends(correct, of, kept):
    assert keep_by_accuracy([1.0] * correct + [0.0] * (of - correct), low=0.05, high=0.8) is kept


def test_filters_refuse_what_has_no_meaning():
    with pytest.raises(ValueError, match="without responses"):
        keep_group([])
    with pytest.raises(ValueError, match="not finite"):
        keep_group([1.0, math.nan])
    with pytest.raises(ValueError, match="not finite"):
        keep_by_accuracy([math.inf], 0.0, 1.0)
    with pytest.raises(ValueError, match="low < high"):
        keep_by_accuracy([1.0], 0.8, 0.05)
