"""Sums and means over the tokens that a mask selects."""

import torch


def masked_sum(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """The sum of `values` where `mask`, of the same shape, is not 0; a NaN outside the mask does not count."""
    return (torch.where(mask.bool(), values, 0.0) * mask).sum(dim=axis)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """The mean of `values` over the mask; 0 where it selects nothing."""
    return masked_sum(values, mask, axis) / (mask.sum(dim=axis) + 1e-8)
