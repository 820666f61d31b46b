"""The batch of an update: flat columns, padding and back, records, and an order that says nothing about length."""

import numpy as np
import pytest
import torch

from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.samples import Group, Sample
from retool_mcore.train.batch import Batch, shuffled


def sample(group, number, tokens, reward=1.0):
    outcome = {"score": reward, "acc": 1.0, "pred": "4", "drop": "", "overlong": 0.0, "graded_by": "text"}
    notes = {"spans": [{"kind": "policy", "start": 0, "end": tokens}], "calls": [], "finish": "answer"}
    ids = np.arange(tokens) + 10 * number
    return Sample(group, number, [1, 2], ids, np.ones(tokens), -ids / 8, notes, "answer", 1, (0, 0), outcome=outcome)


def group(uid, lengths, index=0):
    row = {"data_source": "made", "index": index, "reward_model": {"ground_truth": "4"}}
    return Group(uid, row, 1, [sample(uid, number, tokens) for number, tokens in enumerate(lengths)])


def batch(*groups):
    return Batch.of([(one, group.row) for group in groups for one in group.samples])


def test_columns_are_flat_and_narrow():
    made = batch(group("a", [3, 1]))
    assert made["response_mask"].dtype == torch.int8 and made["rollout_log_probs"].dtype == torch.float32
    assert made["response_mask"].shape == (4,) and made.lengths.tolist() == [3, 1] and made.rewards.tolist() == [1, 1]


def test_padded_and_flat_are_inverse():
    made = batch(group("a", [3, 1, 2]))
    made["advantages"] = torch.arange(6.0)
    padded = made.padded("advantages")
    assert padded.tolist() == [[0, 1, 2], [3, 0, 0], [4, 5, 0]]
    assert made.flat(padded).tolist() == made["advantages"].tolist()
    assert made.of_tokens(torch.tensor([7, 8, 9])).tolist() == [7, 7, 7, 8, 9, 9]


def test_an_engine_without_log_probabilities_leaves_no_column():
    one = sample("a", 0, 2)
    one.log_probs = np.zeros(0, np.float32)
    assert "rollout_log_probs" not in Batch.of([(one, {})])


def test_a_record_has_the_trajectory_its_outcome_and_the_trainers_columns():
    made = batch(group("a", [2, 1], index=5))
    made["old_log_probs"] = made["advantages"] = torch.arange(3.0)
    first, second = made.records(7, made.for_audit())
    assert first["response_ids"].tolist() == [0, 1] and first["old_log_probs"].tolist() == [0, 1]
    assert second["uid"] == "a" and second["sample"] == 1 and second["place"] == 1 and second["step"] == 7
    assert second["index"] == 5 and second["ground_truth"] == "4" and second["score"] == 1.0
    assert second["graded_by"] == "text" and second["finish"] == "answer"


def test_the_draw_depends_on_the_samples_alone():
    groups = [group(f"{step}", [tokens, 9 - tokens], index=tokens) for step, tokens in enumerate(range(1, 9))]
    cut = Cut(rows=16, size=4, ranks=2)
    first, balance = shuffled(groups, cut, seed=1, step=3)
    again, _ = shuffled(groups[::-1], cut, seed=1, step=3)
    names = lambda made: [(s.group, s.number) for s in made.samples]  # noqa: E731
    assert names(first) == names(again) and balance["global_seqlen/mean"] > 0
    assert names(first) != names(shuffled(groups, cut, seed=1, step=4)[0])


def test_a_batch_that_is_no_whole_mini_batches_is_refused():
    with pytest.raises(ValueError, match="does not divide into mini-batches"):
        Cut(rows=16, size=6, ranks=1)


def test_parts_of_a_step_are_joined_with_the_columns_that_all_have():
    parts = [batch(group("a", [2])), batch(group("b", [1]))]
    parts[0]["entropy"] = torch.zeros(2)
    joined = Batch.join(parts)
    assert joined.groups == ["a", "b"] and "entropy" not in joined and joined["response_mask"].shape == (3,)


def test_experts_go_with_their_samples_where_all_have_them():
    """For router replay: rows of prompt and response, in the batch's order."""
    made = [sample("a", number, tokens) for number, tokens in enumerate([2, 1])]
    made[0].experts = np.full((4, 3, 2), 5, np.int16)
    assert Batch.of([(one, {}) for one in made]).experts is None
    made[1].experts = np.full((3, 3, 2), 6, np.int16)
    experts = Batch.of([(one, {}) for one in reversed(made)]).experts
    assert [tuple(one.shape) for one in experts] == [(3, 3, 2), (4, 3, 2)] and experts[0].unique().tolist() == [6]
    assert "experts" not in made[0].kept(), "larger than all the rest"
