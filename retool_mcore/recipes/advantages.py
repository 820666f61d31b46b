"""Advantages, from the papers.

All functions take padded tensors: `rewards` (samples,) float32, `mask` (samples, tokens), 1 where a token teaches, and
return (samples, tokens) float32. A sample's reward is that of its whole response, given at its last token.
`groups` names the group of each sample. `firsts`: where an episode is several samples, of each the first sample of its
episode; an episode counts once in its group, and all of its samples have its advantage. None: each is an episode.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch

from retool_mcore.metrics.masked import masked_mean

_EPSILON = 1e-6


def grpo(
    rewards: torch.Tensor, mask: torch.Tensor, groups: Sequence[Hashable],
    *, by_std: bool, firsts: Sequence[int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """Group-relative advantages (DeepSeekMath, arXiv 2402.03300, Section 4.1.2):

        A_i = (r_i - mean(r)) / (std(r) + epsilon)

    over the rewards r of the sample's group, the standard deviation with Bessel's correction. Without `by_std` the
    difference alone (Dr. GRPO, arXiv 2503.20783, Eq. 2). A group of one has its reward.
    """
    values = rewards.clone()
    for rows in _rows_of(groups, firsts):
        if len(rows) == 1:
            values[rows] = rewards[rows] / (1.0 + _EPSILON) if by_std else rewards[rows]
            continue
        own = rewards[rows]
        values[rows] = (own - own.mean()) / (own.std() + _EPSILON) if by_std else own - own.mean()
    return _of_episodes(values, firsts)[:, None] * mask


def rloo(
    rewards: torch.Tensor, mask: torch.Tensor, groups: Sequence[Hashable], firsts: Sequence[int] | None = None
) -> torch.Tensor:
    """Leave-one-out advantages (arXiv 2402.14740, Eq. 9), with k samples in a group:

        A_i = r_i - sum_{j != i} r_j / (k - 1) = k / (k - 1) (r_i - mean(r))

    A group of one has its reward.
    """
    values = rewards.clone()
    for rows in _rows_of(groups, firsts):
        if (k := len(rows)) > 1:
            own = rewards[rows]
            values[rows] = own * k / (k - 1) - own.mean() * k / (k - 1)
    return _of_episodes(values, firsts)[:, None] * mask


def reinforce_plus_plus_baseline(
    rewards: torch.Tensor, mask: torch.Tensor, groups: Sequence[Hashable], firsts: Sequence[int] | None = None
) -> torch.Tensor:
    """The reward less its group's mean, whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262)."""
    values = rewards.clone()
    for rows in _rows_of(groups, firsts):
        if len(rows) > 1:
            values[rows] = rewards[rows] - rewards[rows].mean()
    return whiten(_of_episodes(values, firsts)[:, None] * mask, mask) * mask


def gae(
    rewards: torch.Tensor, mask: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor,
    *, gamma: float, lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(advantages, returns) by generalised advantage estimation (arXiv 1506.02438, Eq. 16) over the masked tokens:

        delta_t = r_t + gamma V_{t+1} - V_t        A_t = delta_t + gamma lam A_{t+1}        returns = A + V

    Tokens outside the mask (observations) are stepped over: t + 1 is the next token of the policy's. The advantages are
    whitened. values: (samples, tokens) float32 of the critic; lengths: (samples,) tokens of each response.
    """
    token_rewards = torch.zeros_like(values)
    token_rewards[torch.arange(len(token_rewards)), lengths - 1] = rewards
    next_value: torch.Tensor | int = 0
    last: torch.Tensor | int = 0
    backwards = []
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = token_rewards[:, t] + gamma * next_value - values[:, t]
        last = (delta + gamma * lam * last) * here + (1 - here) * last
        next_value = values[:, t] * here + (1 - here) * next_value
        backwards.append(last)
    advantages = torch.stack(backwards[::-1], dim=1)
    return whiten(advantages, mask), advantages + values


def whiten(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`values` with mean 0 and variance 1 over the mask; values outside the mask are shifted and scaled alike."""
    count = mask.sum()
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask) * (count / (count - 1).clamp(min=1))
    return (values - mean) * torch.rsqrt(variance + 1e-8)


def _rows_of(groups: Sequence[Hashable], firsts: Sequence[int] | None) -> list[list[int]]:
    """The rows of each group, of an episode its first alone."""
    rows: dict[Hashable, list[int]] = defaultdict(list)
    for row, group in enumerate(groups):
        if firsts is None or firsts[row] == row:
            rows[group].append(row)
    return list(rows.values())


def _of_episodes(values: torch.Tensor, firsts: Sequence[int] | None) -> torch.Tensor:
    return values if firsts is None else values[torch.tensor(firsts)]
