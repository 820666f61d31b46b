"""Mini-batches are cut and balanced over the ranks as verl does it."""

import random

import pytest
import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from retool_mcore.metrics.step import sequence_balance
from retool_mcore.recipes.mini_batches import Cut, balanced, partitions, work


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_as_verls(parts):
    draw = random.Random(parts)
    for _ in range(30):
        lengths = [draw.choice([3, 3, 7, draw.randint(1, 20_000)]) for _ in range(parts * draw.randint(1, 12))]
        costs = [work(length) for length in lengths]
        assert costs == calculate_workload(torch.tensor(lengths)).tolist()
        theirs = get_seqlen_balanced_partitions(costs, k_partitions=parts, equal_size=True)
        assert balanced(costs, parts) == theirs
        expected = log_seqlen_unbalance(seqlen_list=lengths, partitions=theirs, prefix="global_seqlen")
        assert sequence_balance(lengths, theirs) == expected


def test_each_mini_batch_is_spread_evenly_over_the_ranks():
    order, lengths = random.Random(0).sample(range(24), 24), [10 * (row + 1) for row in range(24)]
    cut = Cut(rows=24, size=8, ranks=2)
    parts = partitions(order, lengths, cut)
    placed = [row for part in parts for row in part]
    for number in range(3):
        rows = {row for place, row in enumerate(placed) if cut.mini_batch(place) == number}
        assert rows == set(order[number * 8 : (number + 1) * 8])


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="3 sequences have no 2 equal parts"):
        balanced([1, 2, 3], 2)
