"""verl's advantage estimators and losses against the formulas of the recipes, and our loss against verl's."""

from typing import get_args

import numpy as np
import pytest
import torch
from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import ActorConfig

import retool_mcore.backends.verl.losses  # noqa: F401  (registers)
from retool_mcore.config.models.recipe import Recipe

LENGTHS = [3, 1, 2, 4]
INDEX = np.array(["a", "a", "b", "b"], dtype=object)
REWARDS = [1.0, 0.0, 1.0, -1.0]


def tensors():
    mask = torch.tensor([[float(t < length) for t in range(4)] for length in LENGTHS])
    rewards = torch.zeros(4, 4)
    for row, (length, reward) in enumerate(zip(LENGTHS, REWARDS, strict=True)):
        rewards[row, length - 1] = reward
    return rewards, mask


def advantages(name, **arguments):
    rewards, mask = tensors()
    result, _ = get_adv_estimator_fn(name)(
        token_level_rewards=rewards, response_mask=mask, index=INDEX, config=None, **arguments
    )
    assert torch.equal(result * (1 - mask), torch.zeros(4, 4))
    return result, mask


def test_all_estimators_that_a_recipe_may_name_are_verls():
    names = get_args(Recipe.model_fields["advantage"].annotation)
    assert names and all(callable(get_adv_estimator_fn(name)) for name in names)


def test_grpo_divides_by_the_groups_standard_deviation_or_not():
    # Groups (1, 0) and (1, -1): means 0.5 and 0, standard deviations sqrt(0.5) and sqrt(2).
    plain, mask = advantages("grpo", norm_adv_by_std_in_grpo=False)
    assert torch.allclose(plain, torch.tensor([0.5, -0.5, 1.0, -1.0])[:, None] * mask)
    normed, _ = advantages("grpo", norm_adv_by_std_in_grpo=True)
    half = 0.5**0.5
    assert torch.allclose(normed, torch.tensor([half, -half, half, -half])[:, None] * mask, atol=1e-5)


def test_leave_one_out_compares_with_the_others_without_standard_deviation():
    result, mask = advantages("rloo")
    assert torch.allclose(result, torch.tensor([1.0, -1.0, 2.0, -2.0])[:, None] * mask)


def test_reinforce_plus_plus_baseline_normalises_over_all_tokens_of_the_batch():
    result, mask = advantages("reinforce_plus_plus_baseline")
    centred = np.repeat([0.5, -0.5, 1.0, -1.0], LENGTHS)  # reward - mean of the group, one value a token
    expected = (centred - centred.mean()) / centred.std(ddof=1)
    assert torch.allclose(result[mask.bool()], torch.tensor(expected, dtype=torch.float32), atol=1e-5)


def test_gae_is_the_return_minus_the_value_and_passes_over_observations():
    # The second token is an observation; reward 1 at the end. With lambda 1: A = 1 - V on each token of the policy.
    arguments = {
        "token_level_rewards": torch.tensor([[0.0, 0.0, 0.0, 1.0]]),
        "values": torch.tensor([[0.5, 9.0, 0.25, 0.75]]),
        "response_mask": torch.tensor([[1.0, 0.0, 1.0, 1.0]]),
        "gamma": 1.0,
    }

    def whitened(*values):
        values = torch.tensor(values)
        return (values - values.mean()) / values.std()

    policy = [0, 2, 3]
    advantages, returns = get_adv_estimator_fn("gae")(lam=1.0, **arguments)
    assert torch.allclose(advantages[0, policy], whitened(0.5, 0.75, 0.25), atol=1e-5)
    assert torch.allclose(returns[0, policy], torch.ones(3))
    # lambda 0: the next value of the policy minus this one.
    advantages, _ = get_adv_estimator_fn("gae")(lam=0.0, **arguments)
    assert torch.allclose(advantages[0, policy], whitened(-0.25, 0.5, 0.25), atol=1e-5)


def test_loss_aggregations():
    loss, mask = torch.arange(1.0, 17.0).reshape(4, 4), tensors()[1]
    rows = [float(loss[i, :length].sum()) for i, length in enumerate(LENGTHS)]
    assert agg_loss(loss, mask, "token-mean") == pytest.approx(sum(rows) / 10)
    assert agg_loss(loss, mask, "seq-mean-token-sum-norm", loss_scale_factor=100) == pytest.approx(sum(rows) / 4 / 100)
    means = [row / length for row, length in zip(rows, LENGTHS, strict=True)]
    assert agg_loss(loss, mask, "seq-mean-token-mean") == pytest.approx(sum(means) / 4)


def policy_loss(name, advantages, mask, log_prob, tokens, dp_size=1):
    config = ActorConfig(
        strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_high=0.28, clip_ratio_c=10.0
    )
    config.global_batch_info.update(
        dp_size=dp_size, batch_num_tokens=tokens, global_batch_size=4, loss_scale_factor=None
    )
    return get_policy_loss_fn(name)(
        old_log_prob=torch.full((4, 4), -1.0),
        log_prob=log_prob,
        advantages=advantages,
        response_mask=mask.bool(),
        loss_agg_mode="token-mean",
        config=config,
    )


def test_our_loss_is_verls_where_nothing_is_left_out_or_predicted():
    values, mask = advantages("grpo")
    log_prob = torch.linspace(-2.5, -0.1, 16).reshape(4, 4)  # ratios on both sides of the clip
    ours, metrics = policy_loss("retool", values, mask, log_prob, tokens=10)
    theirs, their_metrics = policy_loss("vanilla", values, mask, log_prob, tokens=10)
    assert torch.equal(ours, theirs)
    assert metrics == their_metrics | {"actor/observation_loss": 0.0}


def test_a_left_out_sample_is_neither_in_the_numerator_nor_in_the_denominator():
    values, mask = advantages("grpo")
    log_prob = torch.full((4, 4), -1.0)
    kept = mask.clone()
    kept[3] = 0
    loss, _ = policy_loss("retool", values * kept, kept, log_prob, tokens=6)
    assert loss == pytest.approx(-float((values * kept).sum()) / 6)


def test_a_mini_batch_without_any_token_has_loss_zero_and_gradient_zero():
    log_prob = torch.full((4, 4), -1.0, requires_grad=True)
    nothing = torch.zeros(4, 4)
    loss, metrics = policy_loss("retool", nothing, nothing, log_prob, tokens=0)
    loss.backward()
    assert loss == 0 and torch.equal(log_prob.grad, nothing)
    assert all(np.isfinite(value) for value in metrics.values())
    assert not torch.isfinite(policy_loss("vanilla", nothing, nothing, log_prob, tokens=0)[0])


def test_observations_are_predicted_with_their_weight():
    """Tokens outside the mask whose advantage holds alpha: gradient -alpha / masked tokens on each, 0 on padding."""
    values, mask = advantages("grpo")
    alpha = torch.zeros(4, 4)
    alpha[1, 1:3] = 0.1
    log_prob = torch.full((4, 4), -1.0, requires_grad=True)
    loss, metrics = policy_loss("retool", values + alpha, mask, log_prob, tokens=10, dp_size=2)
    base, _ = policy_loss("retool", values, mask, log_prob, tokens=10, dp_size=2)
    assert (loss - base).item() == pytest.approx(2 * 0.1 * 2 / 10)  # two tokens of cross-entropy 1
    assert metrics["actor/observation_loss"] == pytest.approx(0.04)
    gradient = torch.autograd.grad(loss - base, log_prob)[0]
    assert torch.allclose(gradient, -2 * alpha / 10)
