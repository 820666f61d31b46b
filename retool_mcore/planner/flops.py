"""Floating-point operations of packed sequences, exactly: a multiply-add is two.

Model FLOPs after Narayanan et al. 2021 (arXiv 2104.04473, section 5.1, appendix): every matrix of P elements costs 2P a
token forward and 4P backward, 6P in all; with their 6N these are the same but for what is no matrix product (norms,
biases and the embedding's look-up count nothing). Attention is counted as a causal kernel computes it, and over each
sequence's own length: a token looks at itself and what came before it. (Narayanan's formula, and verl's MFU, count the
whole square, twice as much.) Recomputed activations are not model FLOPs (Korthikanti et al. 2022, arXiv 2205.05198,
section 6.3: model FLOPs against hardware FLOPs).
"""

from collections.abc import Sequence

from retool_mcore.planner.shape import Shape

RECOMPUTE = ("none", "selective", "mlp", "full")


def attention_pairs(lengths: Sequence[int]) -> int:
    """Pairs of a query and a key in causal attention over sequences of `lengths` tokens."""
    return sum(length * (length + 1) // 2 for length in lengths)


def attention_of_pairs(shape: Shape, pairs: int) -> float:
    """Forward FLOPs of the two products of attention, QK^T and PV, over so many `attention_pairs`."""
    return 4.0 * shape.layers * shape.q_width * pairs


def forward_flops(shape: Shape, lengths: Sequence[int]) -> float:
    """FLOPs of one forward pass of the whole model over sequences of `lengths` tokens, output layer included."""
    return 2.0 * sum(lengths) * shape.matrices + attention_of_pairs(shape, attention_pairs(lengths))


def model_flops(shape: Shape, lengths: Sequence[int]) -> float:
    """Forward and backward of the whole model over sequences of `lengths` tokens; the backward costs twice the forward.

    Divide by GPUs, seconds and the GPU's peak for the model FLOPs utilisation (MFU).
    """
    return 3.0 * forward_flops(shape, lengths)
