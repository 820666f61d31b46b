"""The figures of a training step under the names that verl gives them, which charts, alarms and readers know.

Tensors are (samples, tokens) of responses, padded; `mask` is 1 where the policy wrote the token and it counts.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from retool_mcore.metrics.masked import masked_sum

PER_TOKEN = ("gen", "ref", "values", "adv", "update_critic", "update_actor")  # phases with a time per token
_LAST = ("training/global_step", "training/rollout_probs_diff_valid", "sandbox/error_share")
_COUNTS = ("filters/", "audit/")


def aggregated(values: torch.Tensor, mask: torch.Tensor, mode: str, scale: float | None = None) -> torch.Tensor:
    """One number of all tokens, as the loss of `recipe.loss_aggregation` = mode takes it.

    token-mean is over all masked tokens; seq-mean-... is over the samples that have any, of the mean or the sum of each
    sample's tokens, the latter divided by `scale` in seq-mean-token-sum-norm (None: the longest response).
    """
    if mode == "token-mean":
        return masked_sum(values, mask) / mask.sum()
    tokens = mask.sum(dim=-1)
    some = (tokens > 0).float()
    each = (values * mask).sum(dim=-1)
    if mode == "seq-mean-token-mean":
        each = each / (tokens + 1e-8)
    loss = masked_sum(each, some) / some.sum()
    return loss / (scale or mask.shape[-1]) if mode == "seq-mean-token-sum-norm" else loss


def probability_differences(old: torch.Tensor, rollout: torch.Tensor, mask: torch.Tensor) -> dict[str, float]:
    """How far the probabilities of the sampled tokens are apart in the trainer (`old`, log) and the rollout engine."""
    names = ("max", "mean", "std")
    valid = mask.bool()
    if not valid.any():
        none = {f"training/rollout_probs_diff_{name}": float("nan") for name in names}
        correlation = {"training/rollout_actor_probs_pearson_corr": float("nan")}
        return {"training/rollout_probs_diff_valid": 0} | none | correlation
    ours, theirs = torch.exp(old)[valid], torch.exp(rollout)[valid]
    difference = torch.abs(ours - theirs)
    metrics = {f"training/rollout_probs_diff_{name}": getattr(difference, name)().item() for name in names}
    correlation = torch.corrcoef(torch.stack([ours, theirs]))[0][1].item()
    return {"training/rollout_probs_diff_valid": 1} | metrics | {
        "training/rollout_actor_probs_pearson_corr": correlation
    }  # fmt: skip


def sequence_balance(lengths: Sequence[int], parts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Tokens of each data-parallel rank, of the samples as they came and as `parts` (the rows of each) balance them."""
    size = len(lengths) // len(parts)
    before = [sum(lengths[start : start + size]) for start in range(0, len(lengths), size)]
    after = [sum(lengths[row] for row in part) for part in parts]
    metrics: dict[str, float] = {"min": min(before), "max": max(before), "minmax_diff": max(before) - min(before)}
    metrics |= {"balanced_min": min(after), "balanced_max": max(after), "mean": sum(before) / len(parts)}
    return {f"global_seqlen/{name}": value for name, value in metrics.items()}


def data_metrics(
    rewards: torch.Tensor, advantages: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor,
    prompts: np.ndarray, responses: np.ndarray, turns: np.ndarray, values: torch.Tensor | None = None,
) -> dict[str, float]:  # fmt: skip
    """Means, maxima and minima of a step's batch.

    rewards (samples,) float32; prompts, responses: (samples,) tokens of each; turns (samples,): of policy and tools;
    values: the critic's.
    """
    valid = mask.bool()
    prompt_tokens, response_tokens = (torch.tensor(lengths, dtype=torch.float32) for lengths in (prompts, responses))
    clipped = {
        name: torch.eq(lengths, lengths.max()).float().mean().item()
        for name, lengths in (("response_length", response_tokens), ("prompt_length", prompt_tokens))
    }
    metrics: dict[str, float] = {}
    for name, tensor in {
        "critic/score": rewards,
        "critic/rewards": rewards,
        "critic/advantages": advantages[valid],
        "critic/returns": returns[valid],
        "response_length": response_tokens,
        "response_length_non_aborted": response_tokens,
        "prompt_length": prompt_tokens,
    }.items():
        metrics |= _spread(name, tensor)
    metrics |= {f"{name}/clip_ratio": value for name, value in clipped.items()}
    metrics |= {"response_length_non_aborted/clip_ratio": clipped["response_length"], "response/aborted_ratio": 0.0}
    if values is not None:
        metrics |= _spread("critic/values", values[valid])
        metrics["critic/vf_explained_var"] = float("nan")
        if valid.sum() > 1:
            unexplained = torch.var(returns[valid] - values[valid]) / (torch.var(returns[valid]) + 1e-5)
            metrics["critic/vf_explained_var"] = (1.0 - unexplained).item()
    for prefix in ("", "training/"):
        metrics |= {f"{prefix}num_turns/{name}": float(getattr(turns, name)()) for name in ("mean", "max", "min")}
    return metrics


def timing_metrics(timing: Mapping[str, float], prompts: int, responses: int, gpus: int) -> dict[str, float]:
    """Seconds by phase, milliseconds a token, throughput. prompts, responses: tokens of the step's batch."""
    total = prompts + responses
    tokens = dict.fromkeys(PER_TOKEN, total) | {"gen": responses}
    metrics = {f"timing_s/{name}": seconds for name, seconds in timing.items()}
    metrics |= {
        f"timing_per_token_ms/{name}": timing[name] * 1000 / tokens[name] for name in PER_TOKEN if name in timing
    }
    return metrics | {
        "perf/total_num_tokens": total,
        "perf/time_per_step": timing["step"],
        "perf/throughput": total / (timing["step"] * gpus),
    }


def staleness_metrics(step: int, first: np.ndarray, last: np.ndarray) -> dict[str, float]:
    """How many updates the weights that wrote a trajectory lag behind those of `step`, and over how many it spans.

    first, last: (samples,) versions of the weights of its first and its last token.
    """
    figures = {
        "trajectory_spans": last - first + 1,
        "trajectory_staleness": step - 1 - last,
        "trajectory_staleness_worst": step - 1 - first,
    }
    return {
        f"training/off_policy/{name}/{how}": float(getattr(values, how)())
        for name, values in figures.items()
        for how in ("mean", "max", "min")
    }


class Total:
    """One step's metrics, made of those of its updates: by name the last, the highest, the lowest, the sum, else the
    mean over the samples."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[float, int]]] = defaultdict(list)

    def add(self, metrics: Mapping[str, Any], samples: int) -> None:
        for name, value in metrics.items():
            self.parts[name].append((float(value), samples))

    def result(self) -> dict[str, float]:
        totals = {
            name: _total(name, [v for v, _ in parts], [n for _, n in parts]) for name, parts in self.parts.items()
        }
        if {"global_seqlen/max", "global_seqlen/min"} <= totals.keys():
            totals["global_seqlen/minmax_diff"] = totals["global_seqlen/max"] - totals["global_seqlen/min"]
        return totals


def _total(name: str, values: list[float], samples: list[int]) -> float:
    name = name.lower()
    if name in _LAST or name.endswith(("/lr", "_lr")):
        return values[-1]
    if "timing_s/" in name or name.startswith(_COUNTS):
        return sum(values)
    if "max" in name:
        return max(values)
    if "min" in name:
        return min(values)
    if "sum" in name or "total" in name:
        return sum(values)
    return sum(value * count for value, count in zip(values, samples, strict=True)) / sum(samples)


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    if not values.numel():
        return dict.fromkeys((f"{name}/mean", f"{name}/max", f"{name}/min"), float("nan"))
    return {f"{name}/{how}": getattr(values, how)().item() for how in ("mean", "max", "min")}
