"""The correction gives, to the last bit, what verl's does: weights, mask and every metric."""

import math

import pytest
import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from retool_mcore.recipes.correction import REJECTIONS
from retool_mcore.recipes.importance import correct

NONE = {"rollout_is": None, "rollout_is_threshold": 2.0, "rollout_rs": None, "rollout_rs_threshold": None}
WEIGHTS = [
    {"rollout_is": level, "rollout_is_threshold": bound}
    for level in ("token", "sequence")
    for bound in (2.0, 1.05, "0.5_5.0", "0.9_1.1")
]
REJECTED = [
    {"rollout_rs": mode, "rollout_rs_threshold": "0.9_1.1" if mode.endswith("k1") else 0.01} for mode in REJECTIONS
]
REJECTED += [
    {"rollout_rs": "token_k1", "rollout_rs_threshold": "1.2"},  # one bound: the other is its inverse
    {"rollout_rs": "token_k1,seq_max_k2", "rollout_rs_threshold": "0.8_1.3,0.05"},
    {"rollout_rs": "seq_mean_k3,token_k3", "rollout_rs_threshold": 0.02},
]


def batch(seed, spread, rows=6, longest=9):
    made = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (rows, 1), generator=made)
    inside = torch.arange(longest) < lengths
    mask = ((torch.rand(rows, longest, generator=made) < 0.8) & inside).to(torch.int8)
    mask[0] = 0  # a sample that is left out
    mask[1, 0] = 1
    old = -torch.rand(rows, longest, generator=made) * 3 * inside
    rollout = (old + spread * torch.randn(rows, longest, generator=made)) * inside
    return old, rollout, mask


@pytest.mark.parametrize("spread", [0.01, 0.3, 30.0])
@pytest.mark.parametrize("values", [{}, *WEIGHTS, *REJECTED, WEIGHTS[0] | REJECTED[0], WEIGHTS[4] | REJECTED[6]])
def test_as_verls(values, spread):
    correction = NONE | values
    for seed in range(3):
        old, rollout, mask = batch(seed, spread)
        tensors = {"old_log_probs": old, "rollout_log_probs": rollout, "response_mask": mask}
        data = DataProto(batch=TensorDict({k: v.clone() for k, v in tensors.items()}, batch_size=len(old)))
        try:
            theirs, expected = compute_rollout_correction_and_add_to_batch(data, correction)
        except ZeroDivisionError:  # all weights are 0: the engines are further apart than both bounds
            assert correct(old, rollout, mask, correction)[2]["rollout_corr/rollout_is_eff_sample_size"] == 0.0
            continue
        weights, kept, metrics = correct(old, rollout, mask, correction)
        assert torch.equal(kept, theirs.batch["response_mask"])
        if values.get("rollout_is"):
            assert torch.equal(weights, theirs.batch["rollout_is_weights"])
        else:
            assert weights is None and "rollout_is_weights" not in theirs.batch
        assert metrics.keys() == expected.keys()
        different = {
            name: (metrics[name], value)
            for name, value in expected.items()
            if metrics[name] != value and not (math.isnan(metrics[name]) and math.isnan(value))
        }
        assert not different


def test_a_batch_whose_samples_are_all_left_out_has_nothing_to_correct():
    old, rollout, mask = batch(0, 0.1)
    weights, kept, metrics = correct(old, rollout, mask * 0, NONE | WEIGHTS[0])
    assert not weights.any() and not kept.any() and metrics == {}
