"""The correction where the rollout engine's policy is not the trainer's: importance weights, rejection, their metrics.

All tensors are (samples, tokens); of a token, log_ratio = log p of the trainer - log p of the rollout engine. The names
of the metrics are verl's (rollout_corr/...), whose formulas these are (Liu et al. 2025, richardli.xyz/rl-collapse).
"""

import math
from collections.abc import Callable, Mapping

import torch

from retool_mcore.metrics.masked import masked_mean, masked_sum

_BOUND = 20.0  # of a log-ratio, before it is exponentiated


def correct(
    old_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor, correction: Mapping
) -> tuple[torch.Tensor | None, torch.Tensor, dict[str, float]]:
    """(importance weights or None, the mask without what is rejected, metrics).

    correction: rollout_is (None, token or sequence) with its threshold, rollout_rs (None, or modes separated by commas)
    with theirs, as recipes/correction.py checks them. A batch whose mask selects nothing has no metrics.
    """
    log_ratio = old_log_probs - rollout_log_probs
    weights, metrics = None, {}
    if not mask.any():
        weights = None if correction["rollout_is"] is None else torch.zeros_like(log_ratio)
        return weights, mask, {}
    kept = mask
    if correction["rollout_is"] is not None:
        weights, metrics = importance_weights(
            log_ratio, mask, correction["rollout_is"], *bounds(correction["rollout_is_threshold"])
        )
    if correction["rollout_rs"] is not None:
        kept, reject_metrics = reject(
            log_ratio, mask, correction["rollout_rs"], str(correction["rollout_rs_threshold"])
        )
        metrics |= reject_metrics
    metrics |= mismatch(old_log_probs, rollout_log_probs, mask)
    return weights, kept, {f"rollout_corr/{name}": float(value) for name, value in metrics.items()}


def bounds(threshold: float | str) -> tuple[float | None, float]:
    """(lowest, highest) of a threshold: one number is the highest."""
    *low, high = (float(part) for part in str(threshold).split("_"))
    return (low[0] if low else None), high


def importance_weights(
    log_ratio: torch.Tensor, mask: torch.Tensor, level: str, low: float | None, high: float
) -> tuple[torch.Tensor, dict[str, float]]:
    """The ratio of each token, or at `level` "sequence" the product over its trajectory; 0 outside the mask.

    Truncated at `high` (TIS, Yao et al. 2025); with `low`, 0 outside both bounds (IcePop, Ling team 2025).
    """
    log_weight = masked_sum(log_ratio, mask, axis=-1)[:, None] if level == "sequence" else log_ratio
    raw = torch.exp(log_weight.clamp(-_BOUND, _BOUND)).expand_as(log_ratio) * mask
    inside = (raw >= (low or 0.0)) & (raw <= high)
    weights = raw.clamp(max=high) if low is None else torch.where(inside, raw, torch.zeros_like(raw))
    metrics = _weight_metrics(weights, raw, log_weight, mask, level, 1.0 / high if low is None else low, high)
    if low is not None:
        metrics["rollout_is_oob_ratio"] = masked_mean((~inside).float(), mask)
    return weights, metrics


def reject(log_ratio: torch.Tensor, mask: torch.Tensor, modes: str, thresholds: str) -> tuple[torch.Tensor, dict]:
    """The mask without the tokens, or whole trajectories, that any of `modes` refuses.

    A mode is LEVEL_KIND: kind k1 is -log_ratio, k2 its square by two, k3 ratio - 1 - log_ratio (Schulman 2020,
    "Approximating KL divergence"); level token judges each token, seq_sum, seq_mean and seq_max a trajectory's sum,
    mean and highest. k1 has two bounds (ratios), the others one.
    """
    safe = log_ratio.clamp(-_BOUND, _BOUND)
    kinds = {"k1": -safe, "k2": 0.5 * safe**2, "k3": torch.exp(safe) - 1.0 - safe}
    levels: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "seq_sum": lambda values: masked_sum(values, mask, axis=-1),
        "seq_mean": lambda values: masked_mean(values, mask, axis=-1),
        "seq_max": lambda values: _masked_max(values, mask),
    }
    chosen = list(dict.fromkeys(mode.strip() for mode in modes.split(",")))
    specs = [spec.strip() for spec in thresholds.split(",")]
    specs = specs * len(chosen) if len(specs) == 1 else specs
    keep = torch.ones_like(log_ratio)
    metrics: dict[str, float] = {}
    for mode, spec in zip(chosen, specs, strict=True):
        level, kind = mode.rsplit("_", 1)
        low, high = bounds(spec)
        if kind == "k1":
            low, high = math.log(1.0 / high if low is None else low), math.log(high)
        else:
            low = None
        of_sequence = None if level == "token" else levels[level](kinds[kind])
        statistic = kinds[kind] if of_sequence is None else of_sequence[:, None].expand_as(log_ratio)
        passes = statistic <= high if low is None else (statistic >= low) & (statistic <= high)
        keep = keep * passes
        mode_metrics = _rejection_metrics(statistic, of_sequence, mask, low, high) | _shares(passes.float(), mask)
        metrics |= {f"rollout_rs_{mode}_{name}": value for name, value in mode_metrics.items()}
    metrics["rollout_rs_masked_fraction"] = masked_mean(1 - keep, mask)
    metrics["rollout_rs_seq_masked_fraction"] = ((keep < 0.5) & mask.bool()).any(dim=-1).float().mean()
    return (mask * keep).to(mask.dtype), metrics


def mismatch(old_log_probs: torch.Tensor, rollout_log_probs: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """How far the two policies are apart: KL, perplexities and chi-square divergences, by token and by trajectory."""
    log_ratio = old_log_probs - rollout_log_probs
    trainer, rollout = (masked_mean(values, mask, axis=-1) for values in (old_log_probs, rollout_log_probs))
    difference = rollout - trainer  # of the log-perplexities, by trajectory
    token = torch.exp(log_ratio.clamp(-_BOUND, _BOUND))
    sequence = masked_sum(log_ratio, mask, axis=-1).clamp(-_BOUND, _BOUND)
    return {
        "training_ppl": torch.exp(-trainer).mean(),
        "training_log_ppl": (-trainer).mean(),
        "kl": masked_mean(rollout_log_probs - old_log_probs, mask),
        "k3_kl": masked_mean(torch.exp(log_ratio) - log_ratio - 1, mask),
        "rollout_ppl": torch.exp(-rollout).mean(),
        "rollout_log_ppl": (-rollout).mean(),
        "log_ppl_diff": difference.mean(),
        "log_ppl_abs_diff": difference.abs().mean(),
        "log_ppl_diff_max": difference.max(),
        "log_ppl_diff_min": difference.min(),
        "ppl_ratio": torch.exp(difference).mean(),
        "chi2_token": masked_mean(token.square(), mask) - 1.0,
        "chi2_seq": torch.exp(2.0 * sequence).mean() - 1.0,
    }


def _weight_metrics(weights, raw, log_weight, mask, level: str, low: float, high: float) -> dict[str, float]:
    metrics = {"rollout_is_mean": masked_mean(weights, mask)}
    if level == "sequence":
        metrics |= {
            "rollout_is_max": torch.exp(log_weight.max().clamp(max=_BOUND)),
            "rollout_is_min": torch.exp(log_weight.min()),
            "rollout_is_ratio_fraction_high": (log_weight > math.log(high)).float().mean(),
            "rollout_is_ratio_fraction_low": (log_weight < math.log(low)).float().mean(),
        }
    else:
        metrics |= {
            "rollout_is_max": weights.masked_fill(~mask.bool(), -math.inf).max(),
            "rollout_is_min": weights.masked_fill(~mask.bool(), math.inf).min(),
            "rollout_is_ratio_fraction_high": masked_mean((raw > high).float(), mask),
            "rollout_is_ratio_fraction_low": masked_mean((raw < low).float(), mask),
        }
    bounded = weights.clamp(min=0.0, max=high)
    square = masked_mean((bounded / (masked_mean(bounded, mask) + 1e-8)).square(), mask).item()
    by_sample, raw_by_sample = masked_mean(weights, mask, axis=-1), masked_mean(raw, mask, axis=-1)
    return metrics | {
        "rollout_is_std": _deviation(bounded, mask),
        "rollout_is_eff_sample_size": 1.0 / square if square else 0.0,
        "rollout_is_seq_mean": by_sample.mean(),
        "rollout_is_seq_std": by_sample.std() if len(by_sample) > 1 else 0.0,
        "rollout_is_seq_max": by_sample.max(),
        "rollout_is_seq_min": by_sample.min(),
        "rollout_is_seq_max_deviation": (by_sample - 1.0).abs().max(),
        "rollout_is_seq_fraction_high": (raw_by_sample > high).float().mean(),
        "rollout_is_seq_fraction_low": (raw_by_sample < low).float().mean(),
    }


def _rejection_metrics(statistic, of_sequence, mask, low: float | None, high: float) -> dict[str, float]:
    """Return the metrics of one mode by what it judges: `of_sequence` (samples,), or where that is None each token of
    `statistic`."""
    some = mask.sum(dim=-1) > 0
    sequences = (masked_mean(statistic, mask, axis=-1) if of_sequence is None else of_sequence)[some]
    above, below = (sequences > high).float().mean(), 0.0 if low is None else (sequences < low).float().mean()
    metrics = {"mean": masked_mean(statistic, mask)}
    if of_sequence is None:
        metrics |= {
            "max": statistic.masked_fill(~mask.bool(), -math.inf).max(),
            "min": statistic.masked_fill(~mask.bool(), math.inf).min(),
            "fraction_high": masked_mean((statistic > high).float(), mask),
            "fraction_low": 0.0 if low is None else masked_mean((statistic < low).float(), mask),
        }
    else:
        metrics |= {"max": sequences.max(), "min": sequences.min(), "fraction_high": above, "fraction_low": below}
    metrics |= {
        "std": _deviation(statistic.clamp(min=0.0 if low is None else low, max=high), mask),
        "seq_mean": sequences.mean(),
        "seq_std": sequences.std() if len(sequences) > 1 else 0.0,
        "seq_max": sequences.max(),
        "seq_min": sequences.min(),
        "seq_max_deviation": sequences.abs().max(),
        "seq_fraction_high": above,
    }
    return metrics if low is None else metrics | {"seq_fraction_low": below}


def _shares(passes: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """Return the shares that one mode alone rejects: of the tokens, and of the trajectories that have any."""
    some = (mask.sum(dim=-1) > 0).float()
    whole = (~((passes < 0.5) & mask.bool())).all(dim=-1).float()
    return {
        "masked_fraction": masked_mean(1 - passes, mask),
        "seq_masked_fraction": ((1.0 - whole) * some).sum() / some.sum(),
    }


def _deviation(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | float:
    if mask.sum() <= 1:
        return 0.0
    variance = masked_mean(values.square(), mask) - masked_mean(values, mask).square()
    return torch.sqrt(variance.clamp(min=0.0))


def _masked_max(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    highest = values.masked_fill(~mask.bool(), -math.inf).max(dim=-1).values
    return torch.where(highest == -math.inf, torch.zeros_like(highest), highest)
