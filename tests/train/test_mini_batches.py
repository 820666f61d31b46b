"""Which trajectories share an optimizer step: a draw that says nothing about their lengths, calls or ends."""

import random

import numpy as np
import pytest

from retool_mcore.metrics.order import order_correlation
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.samples import Group, Sample
from retool_mcore.train.batch import shuffled

PROMPTS, N, SIZE = 64, 4, 8  # a step of 8 mini-batches


def finished(prompts=PROMPTS, *, problems=PROMPTS):
    """A step's groups. Of fewer `problems` than `prompts` some are drawn more than once."""
    groups = []
    for prompt in range(prompts):
        row = {"data_source": "arithmetic", "index": prompt % problems, "reward_model": {"ground_truth": "4"}}
        group = Group(f"000003-{prompt:06d}", row, 3)
        for number in range(N):
            length = 20 + (prompt * N + number) * 7919 % 997
            outcome = {"score": 1.0, "acc": 1.0, "drop": ""}
            ids, ones = np.arange(length - 1), np.ones(length - 1)
            group.samples.append(
                Sample(group.uid, number, [1], ids, ones, -ones, {}, "answer", 1, (0, 0), outcome=outcome)
            )
        groups.append(group)
    return groups


def names(batch):
    return [(sample.group, sample.number) for sample in batch.samples]


def records_of(samples):
    """Their records: the longer, the later."""
    return [
        {
            "response_ids": sample.response_ids,
            "calls": range(sample.length // 200),
            "started": 0.0,
            "generate_s": float(sample.length),
            "tool_s": 0.0,
        }
        for sample in samples
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_mini_batchs_number_tells_nothing_about_its_trajectories(ranks):
    groups, cut = finished(), Cut(PROMPTS * N, SIZE * N, ranks)
    batch, _ = shuffled(groups, cut, seed=1, step=3)
    assert sorted(names(batch)) == sorted((s.group, s.number) for group in groups for s in group.samples)
    numbers = [cut.mini_batch(place) for place in range(len(batch))]
    assert np.bincount(numbers).tolist() == [SIZE * N] * 8
    by_chance = 3 / (len(batch) - 1) ** 0.5
    found = order_correlation(numbers, records_of(batch.samples))
    assert set(found) == {"batch/order_correlation"} | {
        f"batch/order_correlation/{name}" for name in ("tokens", "calls", "finished")
    }
    assert all(abs(value) < by_chance for value in found.values())


def test_the_order_in_which_trajectories_end_is_found_out():
    samples = sorted((s for group in finished() for s in group.samples), key=lambda sample: sample.length)
    numbers = [place // (SIZE * N) for place in range(len(samples))]
    assert order_correlation(numbers, records_of(samples))["batch/order_correlation"] > 0.98


@pytest.mark.parametrize("problems", [PROMPTS, PROMPTS // 3])
def test_a_resumed_run_draws_the_same_mini_batches(problems):
    cut = Cut(PROMPTS * N, SIZE * N, ranks=2)
    groups = finished(problems=problems)
    first, _ = shuffled(groups, cut, seed=1, step=3)
    for group in groups:
        random.Random(5).shuffle(group.samples)  # the engines finished in another order
    random.Random(5).shuffle(groups)
    again, _ = shuffled(groups, cut, seed=1, step=3)
    assert names(first) == names(again)
    for other in ({"seed": 1, "step": 4}, {"seed": 2, "step": 3}):
        assert names(shuffled(finished(problems=problems), cut, **other)[0]) != names(first)


def test_the_ranks_of_every_mini_batch_have_equal_work():
    batch, metrics = shuffled(finished(), Cut(PROMPTS * N, SIZE * N, ranks=4), seed=1, step=3)
    lengths = np.array([sample.length for sample in batch.samples]).reshape(4, 8, SIZE)  # rank, mini-batch, trajectory
    totals = lengths.sum(axis=2)
    assert (totals.max(axis=0) / totals.min(axis=0)).max() < 1.05
    assert metrics["global_seqlen/balanced_max"] == totals.sum(axis=1).max()


def test_one_mini_batch_has_no_order():
    assert order_correlation([0, 0, 0], [{}] * 3) == {}


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="equal part for each rank"):
        Cut(rows=100, size=32, ranks=2)
