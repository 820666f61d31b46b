"""The estimators give, to the last bit, what verl's functions of the same names give."""

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

from retool_mcore.recipes import advantages


def batch(seed, groups=4, n=4, longest=12):
    """(rewards, mask with observations, group names in random order, lengths) of a made-up batch."""
    made = torch.Generator().manual_seed(seed)
    rows = groups * n
    lengths = torch.randint(1, longest + 1, (rows,), generator=made)
    lengths[0] = longest
    mask = (torch.rand(rows, longest, generator=made) < 0.7).to(torch.int8)
    mask *= torch.arange(longest) < lengths[:, None]
    rewards = torch.randn(rows, generator=made)
    rewards[:n] = 1.0  # all equal
    mask[n] = 0  # left out of the loss, yet in its group's baseline
    names = np.array([f"g{row // n}" for row in range(rows)], dtype=object)
    order = torch.randperm(rows, generator=made)
    return rewards[order], mask[order], names[order.numpy()], lengths[order]


def of_tokens(rewards, lengths, longest):
    tokens = torch.zeros(len(rewards), longest)
    tokens[torch.arange(len(rewards)), lengths - 1] = rewards
    return tokens


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("by_std", [True, False])
def test_grpo(seed, by_std):
    rewards, mask, names, lengths = batch(seed, n=1 if seed == 7 else 4)
    tokens = of_tokens(rewards, lengths, mask.shape[1])
    theirs, _ = core_algos.compute_grpo_outcome_advantage(tokens, mask, names, norm_adv_by_std_in_grpo=by_std)
    assert torch.equal(advantages.grpo(rewards, mask, list(names), by_std=by_std), theirs)


@pytest.mark.parametrize("seed", range(8))
def test_rloo(seed):
    rewards, mask, names, lengths = batch(seed, n=1 if seed == 7 else 4)
    theirs, _ = core_algos.compute_rloo_outcome_advantage(of_tokens(rewards, lengths, mask.shape[1]), mask, names)
    assert torch.equal(advantages.rloo(rewards, mask, list(names)), theirs)


@pytest.mark.parametrize("seed", range(8))
def test_reinforce_plus_plus_baseline(seed):
    rewards, mask, names, lengths = batch(seed)
    tokens = of_tokens(rewards, lengths, mask.shape[1])
    theirs, _ = core_algos.compute_reinforce_plus_plus_baseline_outcome_advantage(tokens, mask, names)
    assert torch.equal(advantages.reinforce_plus_plus_baseline(rewards, mask, list(names)), theirs)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95)])
def test_gae(seed, gamma, lam):
    rewards, mask, _, lengths = batch(seed)
    values = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed))
    tokens = of_tokens(rewards, lengths, mask.shape[1])
    theirs = core_algos.compute_gae_advantage_return(tokens, values, mask, gamma, lam)
    ours = advantages.gae(rewards, mask, values, lengths, gamma=gamma, lam=lam)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_reward_is_the_policys_though_an_observation_is_the_last_token():
    """The last policy token sees the reward at the response's end (arXiv 1506.02438, over the policy's tokens)."""
    mask = torch.tensor([[1, 0, 1, 0]], dtype=torch.int8)
    _, returns = advantages.gae(
        torch.tensor([1.0]), mask, torch.zeros(1, 4), torch.tensor([3]), gamma=1.0, lam=1.0
    )  # fmt: skip
    assert returns[0, [0, 2]].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("masked", [0, 1])
def test_a_batch_that_teaches_next_to_nothing_has_finite_advantages(masked):
    mask = torch.zeros(2, 3, dtype=torch.int8)
    mask[0, :masked] = 1
    found = advantages.reinforce_plus_plus_baseline(torch.tensor([1.0, 0.0]), mask, ["g", "g"])
    assert torch.isfinite(found).all()
