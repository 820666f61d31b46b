import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.held_back import split_by_problem
from retool_mcore.data.records import Problem, Segment, Trace, normalise_question
from retool_mcore.errors import UserError


def traces(questions):
    return [Trace("s", question, (Segment("text", "\\boxed{1}"),), i) for i, question in enumerate(questions)]


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    st.lists(st.sampled_from([f"q{i} ²" for i in range(12)]), min_size=6, max_size=40).filter(
        lambda q: len(set(q)) > 4
    ),
    st.integers(0, 5),
    st.randoms(use_true_random=False),
)
def test_no_problem_is_on_both_sides_and_no_record_is_lost(questions, seed, rng):
    # The same question in other spelling must land on the same side.
    spelled = [rng.choice([q, q.upper(), f" {q}\r\n", q.replace(" ", "  ")]) for q in questions]
    records = traces(spelled)
    train, validation = split_by_problem(records, 0.3, seed)
    keys = [{normalise_question(r.question) for r in half} for half in (train, validation)]
    assert not keys[0] & keys[1]
    assert sorted(train + validation, key=lambda r: r.index) == records
    assert len(keys[1]) == round(0.3 * len(set(questions)))
    assert [r.index for r in train] == sorted(r.index for r in train)


def test_the_split_depends_on_the_seed_and_not_on_row_order():
    records = traces([f"question {i}" for i in range(50)])
    shuffled = random.Random(1).sample(records, len(records))
    _, validation = split_by_problem(records, 0.2, seed=7)
    _, again = split_by_problem(shuffled, 0.2, seed=7)
    _, other = split_by_problem(records, 0.2, seed=8)
    assert set(validation) == set(again)
    assert set(validation) != set(other)


def test_the_split_is_the_same_in_every_version():
    records = [Problem("s", f"question {i}", "1", i) for i in range(10)]
    _, validation = split_by_problem(records, 0.2, seed=0)
    assert [r.index for r in validation] == [8, 9]


@pytest.mark.parametrize("fraction", [0.0, 0.04, 0.96, 1.0])
def test_an_empty_side_is_refused(fraction):
    with pytest.raises(UserError, match="at least one problem on each side"):
        split_by_problem(traces([f"question {i}" for i in range(10)]), fraction, seed=0)


def test_one_problem_with_many_traces_cannot_be_split():
    with pytest.raises(UserError, match="of 1 problems puts 0"):
        split_by_problem(traces(["same"] * 20), 0.3, seed=0)
