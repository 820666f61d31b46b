"""The policy losses that a recipe may name against their papers' formulas, written out token by token in float64.

Of the trajectories here the interpreter wrote tokens in the middle: what stands there (log-probabilities, advantages)
is far from the rest, so that a loss which reads it is seen.
"""

import math
from typing import get_args

import pytest
import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.workers.config import ActorConfig

import retool_mcore.backends.verl.losses  # noqa: F401  (registers)
from retool_mcore.config import compose
from retool_mcore.config.models.recipe import LOSS_AGGREGATIONS, Recipe

# 1: the policy's, 0: the interpreter's, None: padding.
TOKENS = [[1, 1, 0, 0, 1, 1], [1, 0, 0, 1, None, None], [1, 1, 1, None, None, None], [1, 0, 1, 1, 1, None]]
# log(pi / pi_old) of the policy's tokens; sums and means lie on both sides of every bound below, for both signs of A.
LOG_RATIOS = [[0.5, 0.4, -0.1, 0.6], [-0.6, -0.5], [0.3, -0.2, 0.05], [0.7, -0.3, 0.5, 0.6]]
ADVANTAGES = [1.5, 0.5, -1.0, -0.5]
LOW, HIGH = 0.2, 0.28
SCALE = 100


def tensors(dtype=torch.float64):
    """old_log_prob, log_prob (a leaf), advantages, response_mask: (4, 6)."""
    old, new, values = (torch.zeros(4, 6, dtype=dtype) for _ in range(3))
    mask = torch.tensor([[kind == 1 for kind in row] for row in TOKENS])
    for i, row in enumerate(TOKENS):
        ratios = iter(LOG_RATIOS[i])
        for t, kind in enumerate(row):
            old[i, t] = 0 if kind is None else -1.0 - 0.1 * t
            new[i, t] = {1: lambda i=i, t=t, r=ratios: old[i, t] + next(r), 0: lambda: -9.0, None: lambda: 0.0}[kind]()
            values[i, t] = {1: ADVANTAGES[i], 0: 77.0, None: 0.0}[kind]
    return old, new.requires_grad_(), values, mask


def ours(name, aggregation, rows=slice(None), dp_size=1, weights=None, low=LOW, high=HIGH, **changed):
    """(loss, its gradient (4, 6), metrics) by what is registered with verl, of some rows of the mini-batch."""
    old, new, values, mask = tensors()
    config = ActorConfig(
        strategy="megatron", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=low, clip_ratio_high=high
    )
    config.global_batch_info.update(
        dp_size=dp_size, batch_num_tokens=int(mask.sum()), global_batch_size=4, loss_scale_factor=SCALE
    )
    tensor = dict(old_log_prob=old, log_prob=new, advantages=values, response_mask=mask, rollout_is_weights=weights)
    tensor = {key: None if value is None else value[rows] for key, value in (tensor | changed).items()}
    loss, metrics = get_policy_loss_fn(name)(loss_agg_mode=aggregation, config=config, **tensor)
    loss.backward()
    return loss.item(), new.grad, metrics


def by_hand(objective):
    """(loss, gradient (4, 6)) of -J, where `objective(rows)` gives J and each row is (A_i, [(new, old), ...])."""
    old, new, _, mask = tensors()
    rows = [
        (ADVANTAGES[i], [(new[i, t], float(old[i, t])) for t in range(6) if mask[i, t]]) for i in range(len(ADVANTAGES))
    ]
    loss = -objective(rows)
    loss.backward()
    return loss.item(), new.grad


def clipped(ratio, advantage):
    return torch.minimum(ratio * advantage, ratio.clamp(1 - LOW, 1 + HIGH) * advantage)


def gspo(rows):
    """Eq. 5 and 7: s_i = (pi(y_i) / pi_old(y_i)) ** (1 / |y_i|), mean over i of min(s_i A_i, clip(s_i) A_i)."""
    total = 0
    for advantage, tokens in rows:
        likelihood, before = torch.ones(1, dtype=torch.float64), 1.0
        for new, old in tokens:
            likelihood, before = likelihood * new.exp(), before * math.exp(old)
        total = total + clipped((likelihood / before) ** (1 / len(tokens)), advantage)
    return total / len(rows)


def sequence_clip(rows):
    """As GSPO, without the root."""
    total = 0
    for advantage, tokens in rows:
        ratio = math.prod((new - old).exp() for new, old in tokens)
        total = total + clipped(ratio, advantage)
    return total / len(rows)


def cispo(rows):
    """Eq. 4 and 5: 1 / sum |o_i| of sg(clip(r_it, 1 - low, 1 + high)) A_i log pi(o_it)."""
    total, count = 0, 0
    for advantage, tokens in rows:
        for new, old in tokens:
            weight = min(max(math.exp(new.item() - old), 1 - LOW), 1 + HIGH)
            total, count = total + weight * advantage * new, count + 1
    return total / count


def dr_grpo(rows):
    """1 / G of sum_i sum_t min(r_it A_i, clip(r_it) A_i), by a constant instead of |o_i|."""
    total = 0
    for advantage, tokens in rows:
        for new, old in tokens:
            total = total + clipped((new - old).exp(), advantage)
    return total / len(rows) / SCALE


CASES = {
    "gspo": ("gspo", "seq-mean-token-mean", gspo),
    "sequence_clip": ("sequence_clip", "seq-mean-token-sum", sequence_clip),
    "cispo": ("cispo", "token-mean", cispo),
    "dr_grpo": ("vanilla", "seq-mean-token-sum-norm", dr_grpo),
}


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_the_papers(case):
    name, aggregation, formula = CASES[case]
    expected, gradient = by_hand(formula)
    loss, found, metrics = ours(name, aggregation)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert torch.allclose(found, gradient, rtol=1e-6, atol=1e-9)
    assert 0 < metrics["actor/pg_clipfrac"] < 1, "some are clipped and some are not"
    own = sum(len(row) for row in LOG_RATIOS)
    assert metrics["actor/ppo_kl"] == pytest.approx(-sum(map(sum, LOG_RATIOS)) / own)


@pytest.mark.parametrize("case", CASES)
def test_what_the_interpreter_wrote_has_no_gradient_and_no_influence(case):
    name, aggregation, _ = CASES[case]
    old, _, values, mask = tensors()
    loss, gradient, _ = ours(name, aggregation)
    assert torch.equal(gradient[~mask], torch.zeros(int((~mask).sum()), dtype=torch.float64))
    other = torch.where(mask, old, -3.0)
    assert ours(name, aggregation, old_log_prob=other)[0] == pytest.approx(loss, rel=1e-9)
    assert ours(name, aggregation, advantages=values * mask)[0] == pytest.approx(loss, rel=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_micro_batches_and_ranks_add_up_to_the_mini_batch(case):
    name, aggregation, _ = CASES[case]
    whole, gradient, _ = ours(name, aggregation)
    parts = [ours(name, aggregation, rows, dp_size=2) for rows in (slice(0, 1), slice(1, 4))]
    assert sum(part[0] for part in parts) / 2 == pytest.approx(whole)  # the mean that two ranks take
    assert torch.allclose(sum(part[1] for part in parts) / 2, gradient)


@pytest.mark.parametrize("case", CASES)
def test_the_rollout_correction_weighs_each_tokens_gradient(case):
    name, aggregation, _ = CASES[case]
    weights = torch.linspace(0.5, 2.0, 24, dtype=torch.float64).reshape(4, 6)
    _, plain, _ = ours(name, aggregation)
    _, weighted, _ = ours(name, aggregation, weights=weights)
    assert torch.allclose(weighted, plain * weights)


def test_a_clipped_sequence_has_no_gradient_and_a_clipped_weight_of_cispo_keeps_it():
    mask = tensors()[3]
    for case in ("gspo", "sequence_clip"):
        gradient = ours(*CASES[case][:2])[1]
        assert not gradient[0].any(), "A > 0 and the ratio above 1 + high"
        assert gradient[3][mask[3]].all(), "A < 0: the clip is of no effect above 1"
    assert ours(*CASES["cispo"][:2])[1][mask].all()


def test_the_ratio_of_a_whole_sequence_stays_finite():
    new = torch.full((4, 6), 40.0, dtype=torch.float64, requires_grad=True)
    loss, metrics = ours("sequence_clip", "seq-mean-token-sum", log_prob=new.clone().requires_grad_())[::2]
    assert math.isfinite(loss) and all(map(math.isfinite, metrics.values()))


def test_group_advantages_of_dr_grpo_are_not_divided_by_the_standard_deviation():
    config = compose("rl", ["recipe=dr_grpo", "data=math"])
    assert (config.recipe.advantage, config.verl.algorithm.norm_adv_by_std_in_grpo) == ("grpo", False)
    mask = torch.tensor([[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    found, _ = get_adv_estimator_fn("grpo")(
        token_level_rewards=rewards, response_mask=mask, index=["p"] * 3, norm_adv_by_std_in_grpo=False
    )
    assert torch.allclose(found, torch.tensor([2 / 3, -1 / 3, -1 / 3])[:, None] * mask)


# The line, and what of it reaches verl: loss, aggregation, its divisor, bounds.
LINES = {
    "recipe=gspo": ("gspo", "seq-mean-token-mean", None, 3e-4, 4e-4),
    "recipe=cispo": ("cispo", "token-mean", None, 1.0, 4.0),
    "recipe=dr_grpo": ("vanilla", "seq-mean-token-sum-norm", 320, 0.2, 0.2),
    "recipe.policy_loss=gspo": ("gspo", "seq-mean-token-mean", None, 0.2, 0.28),
    "recipe.policy_loss=cispo": ("cispo", "token-mean", None, 0.2, 0.28),
    "recipe.policy_loss=sequence_clip": ("sequence_clip", "seq-mean-token-sum", None, 0.2, 0.28),
}


@pytest.mark.parametrize("line", LINES)
def test_one_line_chooses_a_loss_with_its_aggregation(line):
    actor = compose("rl", [line]).verl.actor_rollout_ref.actor
    found = (actor.policy_loss.loss_mode, actor.loss_agg_mode, actor.loss_scale_factor)
    assert (*found, actor.clip_ratio_low, actor.clip_ratio_high) == LINES[line]


def test_every_loss_that_a_recipe_may_name_is_registered():
    names = get_args(Recipe.model_fields["policy_loss"].annotation)
    assert set(LOSS_AGGREGATIONS) < set(names) and all(callable(get_policy_loss_fn(name)) for name in names)
