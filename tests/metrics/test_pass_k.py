from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.errors import UserError
from retool_mcore.metrics.pass_k import majority_acc, pass_at_k


def samples(*pairs, index=0, source="aime") -> list[dict]:
    return [{"data_source": source, "index": index, "pred": pred, "acc": acc} for pred, acc in pairs]


def test_means_over_problems_of_each_source():
    records = samples(("5", 1), ("6", 0), index=0) + samples(("7", 0), ("8", 0), index=1)
    records += samples(("1", 1), ("1", 1), index=0, source="math")
    assert pass_at_k(records, 2) == {
        "aime/mean@2": 0.25,
        "aime/best@2": 0.5,
        "aime/maj@2": 0.5,
        "math/mean@2": 1.0,
        "math/best@2": 1.0,
        "math/maj@2": 1.0,
    }


@settings(max_examples=60, deadline=None, derandomize=True)
@given(accs=st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=8), data=st.data())
def test_best_is_the_mean_over_all_subsets(accs, data):
    k = data.draw(st.integers(1, len(accs)))
    subsets = list(combinations(accs, k))
    expected = sum(map(max, subsets)) / len(subsets)
    assert pass_at_k(samples(*[("x", acc) for acc in accs]), k)[f"aime/best@{k}"] == pytest.approx(expected)


def test_majority():
    assert majority_acc(samples(("1", 0), ("2", 1), ("2", 1))) == 1
    assert majority_acc(samples(("2", 1), ("1", 0), ("1", 0))) == 0


def test_a_tie_goes_to_the_earliest_first_vote():
    assert majority_acc(samples(("1", 0), ("2", 1), ("2", 1), ("1", 0))) == 0
    assert majority_acc(samples(("2", 1), ("1", 0), ("1", 0), ("2", 1))) == 1


def test_samples_without_an_answer_do_not_vote():
    assert majority_acc(samples(("", 0), ("", 0), (" ", 0), ("2", 1))) == 1
    assert majority_acc(samples(("", 0), ("", 0))) == 0


def test_equivalent_predictions_vote_together():
    votes = samples(("3", 0), ("1/2", 1), ("3", 0), ("0.5", 1), (" 1/2 ", 1))
    asked = []

    def same(a: str, b: str) -> bool:
        asked.append((a, b))
        return {a, b} == {"1/2", "0.5"}

    assert majority_acc(samples(("3", 0), ("1/2", 1), ("3", 0), ("0.5", 1))) == 0
    assert majority_acc(votes, same) == 1
    assert asked == [("1/2", "3"), ("0.5", "3"), ("0.5", "1/2")]  # every spelling once


def test_only_the_first_k_samples_vote():
    records = samples(("1", 0), ("2", 1), ("2", 1))
    scores = pass_at_k(records, 1)
    assert scores["aime/maj@1"] == 0
    assert scores["aime/mean@1"] == scores["aime/best@1"] == 2 / 3


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="Problem 3 of aime has 1 samples, 2 are needed"):
        pass_at_k(samples(("1", 1), index=3), 2)
    with pytest.raises(ValueError, match="k must be"):
        pass_at_k([], 0)
    with pytest.raises(ValueError, match="acc must be 0 or 1"):
        pass_at_k(samples(("1", 0.5)), 1)
    assert pass_at_k([], 1) == {}
