"""Packed micro-batches in verl's engine: every sequence once, within the budget, the same columns as verl's."""

import numpy as np
import pytest
import torch
from verl.utils import tensordict_utils
from verl.workers.engine.megatron import transformer_impl

from retool_mcore.backends.megatron import micro_batches
from retool_mcore.errors import UserError

LENGTHS = [700, 40, 512, 3, 900, 1000, 64, 333, 250, 81, 640, 77]


def batch(lengths=LENGTHS, budget=1024, **options):
    rows = [torch.arange(length) + 10_000 * number for number, length in enumerate(lengths)]
    tensors = {
        "input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "advantages": torch.nested.as_nested_tensor([row.float() for row in rows], layout=torch.jagged),
        "reward": torch.arange(len(lengths), dtype=torch.float32),
        "uid": [f"prompt {number}" for number in range(len(lengths))],
    }
    options = {"use_dynamic_bsz": True, "max_token_len_per_gpu": budget, "temperature": 0.7} | options
    return tensordict_utils.get_tensordict(tensors, options)


def prepare(data, align=1, **options):
    with micro_batches.packed(align):
        return transformer_impl.prepare_micro_batches(data=data, **options)


@pytest.mark.parametrize("align", [1, 2, 16])
def test_every_sequence_is_in_one_micro_batch_within_the_budget(align):
    parts, bins = prepare(batch(), align=align)
    assert sorted(index for chosen in bins for index in chosen) == list(range(len(LENGTHS)))
    for part, chosen in zip(parts, bins, strict=True):
        lengths = part["input_ids"].offsets().diff().tolist()
        assert lengths == [LENGTHS[index] for index in chosen]
        assert sum(-(-length // align) * align for length in lengths) <= 1024
        assert [row[0].item() // 10_000 for row in part["input_ids"].unbind()] == chosen
        assert part["reward"].tolist() == chosen and part["temperature"] == 0.7
        assert list(part["uid"]) == [f"prompt {index}" for index in chosen]


def test_it_needs_fewer_micro_batches_than_verl():
    lengths = (np.random.default_rng(0).lognormal(6.0, 0.8, 150).clip(20, 2000)).astype(int).tolist()
    ours, _ = prepare(batch(lengths, budget=2048))
    theirs, _ = transformer_impl.prepare_micro_batches(data=batch(lengths, budget=2048))
    assert len(ours) < len(theirs)
    assert len(ours) == -(-sum(lengths) // 2048)


def test_the_micro_batches_are_verls_in_everything_but_the_choice():
    ours, bins = prepare(batch(budget=10_000))
    theirs, their_bins = transformer_impl.prepare_micro_batches(data=batch(budget=10_000))
    assert [sorted(chosen) for chosen in bins] == [sorted(chosen) for chosen in their_bins] == [list(range(12))]
    assert sorted(ours[0].keys()) == sorted(theirs[0].keys()) and ours[0].batch_size == theirs[0].batch_size
    back = torch.empty(12, dtype=torch.long)
    back[torch.tensor(bins[0])] = torch.arange(12)
    for name in ("input_ids", "advantages"):
        rows = ours[0][name].unbind()
        assert all(torch.equal(rows[back[row]], batch()[name][row]) for row in range(12))


def test_a_pipeline_gets_whole_groups_and_the_cheap_ones_at_both_ends():
    _, bins = prepare(batch(), num_batches_divided_by=3)
    assert len(bins) % 3 == 0
    costs = [float(micro_batches.COST(np.array([LENGTHS[index] for index in chosen])).sum()) for chosen in bins]
    top = costs.index(max(costs))
    assert costs[: top + 1] == sorted(costs[: top + 1]) and costs[top:] == sorted(costs[top:], reverse=True)


def test_all_data_parallel_ranks_make_as_many():
    bins = micro_batches.fill(LENGTHS, budget=1024, agree=lambda count: count + 3)
    assert len(bins) == len(micro_batches.fill(LENGTHS, budget=1024)) + 3 and all(bins)
    with pytest.raises(ValueError, match="12 sequences do not make 13 .*raise parallel.micro_batch_tokens"):
        micro_batches.fill(LENGTHS, budget=1024, agree=lambda count: 13)


def test_a_sequence_beyond_the_budget_is_refused():
    with pytest.raises(UserError, match="the longest sequence has 1000 tokens and a micro-batch takes 999"):
        prepare(batch(budget=999))


def test_what_is_not_packed_stays_verls():
    parts, bins = prepare(batch(use_dynamic_bsz=False, micro_batch_size_per_gpu=4))
    assert bins is None and [len(part) for part in parts] == [4, 4, 4]


def test_verls_function_is_back_afterwards():
    stock = transformer_impl.prepare_micro_batches
    with pytest.raises(ZeroDivisionError), micro_batches.packed(1):
        assert transformer_impl.prepare_micro_batches is not stock
        1 / 0  # noqa: B018
    assert transformer_impl.prepare_micro_batches is stock is micro_batches.PREPARE.stock
