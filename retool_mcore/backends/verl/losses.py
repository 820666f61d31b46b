"""Policy losses registered with verl. Imported in every trainer process (`actor_rollout_ref.model.external_lib`).

verl's own `gspo` and `cispo` compute their papers' formulas, with the aggregation that config/models/recipe.py requires
(tests/recipes/test_policy_losses.py).
"""

import torch
from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, register_policy_loss
from verl.utils.torch_functional import masked_mean

_MAX_LOG_RATIO = 10.0  # as verl bounds GSPO's


@register_policy_loss("retool")
def compute_policy_loss_retool(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config=None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """verl's clipped loss ("vanilla", dual clip included), where samples are left out or observations are predicted.

    All tensors are (samples, tokens) float, `response_mask` is bool. Where the mask is 0, `advantages` holds not an
    advantage but the weight alpha of an observation token's cross-entropy (train/rl.py writes it; else 0):

        loss = clipped loss over masked tokens + sum over the others of -alpha * log_prob / masked tokens

    the denominator being the mini-batch's over all ranks, as in token-mean. A mini-batch whose samples are all left
    out has loss 0 instead of 0/0. The world-model variant is ZeroTIR's (arXiv 2505.07773).
    """
    info = config.global_batch_info
    if info.get("batch_num_tokens") == 0:
        info["batch_num_tokens"] = 1
    mask = response_mask.bool()
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob=old_log_prob,
        log_prob=log_prob,
        advantages=advantages * mask,
        response_mask=response_mask,
        loss_agg_mode=loss_agg_mode,
        config=config,
        rollout_is_weights=rollout_is_weights,
    )
    weights = advantages * ~mask
    tokens = info.get("batch_num_tokens") or max(int(mask.sum()), 1)
    observation_loss = -(log_prob * weights).sum() / tokens * info.get("dp_size", 1)
    return loss + observation_loss, metrics | {"actor/observation_loss": observation_loss.detach().item()}


@register_policy_loss("sequence_clip")
def compute_policy_loss_sequence_clip(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "seq-mean-token-sum",
    config=None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO's clip (arXiv 1707.06347, Eq. 7) with the whole response as one action, as arXiv 2402.14740 models it. Of
    response i, whose masked tokens are t and whose advantage is A_i:

        r_i = exp(sum_t (log_prob_it - old_log_prob_it))
        loss = mean_i -min(r_i A_i, clip(r_i, 1 - clip_low, 1 + clip_high) A_i)

    GSPO's ratio is the |y_i|-th root of this one. All tensors are (samples, tokens) float, `response_mask` is bool; A_i
    is the mean of `advantages` over the mask. `rollout_is_weights` scale the gradient of each token. The mean is over
    the mini-batch of all ranks, whatever `loss_agg_mode` says: config/models/recipe.py lets no other pass.
    """
    difference = (log_prob - old_log_prob) * response_mask
    total = difference.detach().sum(-1)
    weights = 1.0 if rollout_is_weights is None else rollout_is_weights
    # Of value `total`; the weights are in its gradient alone.
    total = total + ((difference - difference.detach()) * weights).sum(-1)
    ratio = torch.exp(total.clamp(max=_MAX_LOG_RATIO))
    tokens = response_mask.sum(-1)
    advantage = (advantages * response_mask).sum(-1) / tokens.clamp(min=1)
    free = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    some = (tokens > 0)[:, None]
    loss = agg_loss(torch.maximum(free, clipped)[:, None], some, "seq-mean-token-sum", **config.global_batch_info)
    metrics = {
        "actor/pg_clipfrac": masked_mean((clipped > free).float()[:, None], some).item(),
        "actor/ppo_kl": -masked_mean(difference.detach(), response_mask).item(),
    }
    return loss, metrics
