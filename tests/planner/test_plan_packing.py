"""Packing: nothing lost, nothing too full, and close to the least number of micro-batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.errors import UserError
from retool_mcore.planner.packing import Cost, pack
from retool_mcore.planner.shape import SHAPES

LENGTHS = st.lists(st.integers(1, 120), min_size=1, max_size=80)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(120, 400))
def test_every_sequence_is_in_one_micro_batch_and_none_is_too_full(lengths, slots):
    bins = pack(np.array(lengths), slots)
    assert sorted(index for taken in bins for index in taken) == list(range(len(lengths)))
    assert max(sum(lengths[index] for index in taken) for taken in bins) <= slots
    # Two micro-batches that fit into one would not be "as few as can be": at most one is half empty or less.
    assert sum(sum(lengths[index] for index in taken) * 2 <= slots for taken in bins) <= 1


@pytest.mark.parametrize("seed", range(2))
def test_thousands_of_lengths_fill_nearly_every_slot(seed):
    random = np.random.default_rng(seed)
    lengths = np.minimum(16384, random.lognormal(np.log(5000), 0.75, 4096)).astype(int) + 200
    assert lengths.sum() / (32768 * len(pack(lengths, 32768))) >= 0.995


def test_pairs_fill_exactly_where_the_longest_that_fits_would_not():
    # After 60, the longest that fits is 35 and leaves 5 empty; 22 + 18 leave none.
    bins = pack(np.array([60, 35, 22, 18]), 100)
    assert sorted(map(sorted, bins)) == [[0, 2, 3], [1]]


def test_a_pair_of_one_length_needs_two_sequences_of_it():
    assert sorted(map(len, pack(np.array([60, 20, 35]), 100))) == [1, 2]
    assert sorted(map(sorted, pack(np.array([60, 20, 35, 20]), 100))) == [[0, 1, 3], [2]]


def test_cost_is_the_models_forward_flops():
    from retool_mcore.planner.flops import forward_flops

    shape = SHAPES["qwen2.5-7b"]
    assert Cost.of(shape)(np.array([5000]))[0] == pytest.approx(forward_flops(shape, [5000]), rel=1e-4)


@pytest.mark.parametrize(
    ("lengths", "part"), [([], "at least one"), ([3, 0], "1 token or more"), ([11], "raise micro_batch_tokens")]
)
def test_what_cannot_be_packed_is_refused(lengths, part):
    with pytest.raises(UserError, match=part):
        pack(np.array(lengths), 10)


def test_a_pair_that_fills_a_micro_batch_is_as_alike_as_there_are():
    assert pack(np.array([60, 30, 21, 19, 10]), 100) == [[0, 2, 3], [1, 4]]
    assert pack(np.array([60, 20, 20, 5]), 100) == [[0, 2, 1], [3]], "two of one length"
    assert pack(np.array([60, 20, 30, 10]), 100) == [[0, 2, 3], [1]], "one of a length is no pair"
