"""Policy losses registered with verl. Imported in every trainer process (`actor_rollout_ref.model.external_lib`)."""

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss


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
    advantage but the weight alpha of an observation token's cross-entropy (recipes/step.py writes it; else 0):

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
