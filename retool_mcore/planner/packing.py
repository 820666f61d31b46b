"""Sequences into full micro-batches.

Packing is bin packing: the longest sequence that is left opens a micro-batch; then one that nearly fills it, or two
that fill it exactly, are looked for among the lengths there are (a two-sum over a bit mask), and only without such a
pair is it the longest that fits (best fit decreasing: Johnson 1973). Thousands of sequences have nearly every length,
so nearly every micro-batch comes out full.
"""

import heapq
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Self

import numpy as np

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import Shape

# A single sequence that leaves at most this share of the slots empty is better than two that leave none: the short ones
# are what fills up the micro-batches that are still to come.
NEARLY = 0.001


@dataclass(frozen=True)
class Cost:
    """Cost of a sequence of l tokens: linear * l + quadratic * l^2, in any unit."""

    linear: float = 1.0
    quadratic: float = 0.0

    @classmethod
    def of(cls, shape: Shape) -> Self:
        """Forward FLOPs: 2 a weight and token; 4 a query's width and pair; causal attention has l^2 / 2 pairs."""
        return cls(linear=2.0 * shape.matrices, quadratic=2.0 * shape.layers * shape.q_width)

    def __call__(self, lengths: np.ndarray) -> np.ndarray:
        """(n,) tokens to (n,) float64."""
        lengths = np.asarray(lengths, np.float64)
        return lengths * (self.linear + self.quadratic * lengths)


def pack(lengths: np.ndarray, slots: int) -> list[list[int]]:
    """Indices of `lengths`, (n,) int64, in groups of at most `slots` tokens, as few groups as can be found quickly."""
    lengths = np.asarray(lengths, np.int64)
    if not len(lengths) or lengths.min() < 1:
        raise UserError("packing needs at least one sequence, each of 1 token or more.")
    if lengths.max() > slots:
        raise UserError(
            f"the longest sequence has {lengths.max()} tokens and a micro-batch takes {slots}: "
            "raise micro_batch_tokens."
        )
    left = _Left(lengths, slots)
    nearly = int(NEARLY * slots)
    bins = []
    while left.distinct:
        taken, room = [], slots
        length = left.distinct[-1]
        while True:
            taken.append(left.take(length))
            room -= length
            if not left.distinct or room < left.distinct[0]:
                break
            length = left.longest(room)
            if room - length > nearly and (pair := left.pair(room)):
                taken += [left.take(pair[0]), left.take(pair[1])]
                break
        bins.append(taken)
    return bins


class _Left:
    """The sequences that are in no micro-batch yet, by length."""

    def __init__(self, lengths: np.ndarray, slots: int):
        order = np.argsort(lengths, kind="stable")
        self.indices: dict[int, list[int]] = {}
        for index, length in zip(order.tolist(), lengths[order].tolist(), strict=True):
            self.indices.setdefault(length, []).append(index)
        self.distinct = list(self.indices)  # rising
        self.slots = slots
        self.there = sum(1 << length for length in self.distinct)  # as bits
        self.mirrored = sum(1 << (slots - length) for length in self.distinct)

    def take(self, length: int) -> int:
        indices = self.indices[length]
        index = indices.pop()
        if not indices:
            self.there ^= 1 << length
            self.mirrored ^= 1 << (self.slots - length)
            self.distinct.pop(bisect_left(self.distinct, length))
        return index

    def longest(self, room: int) -> int:
        return self.distinct[bisect_right(self.distinct, room) - 1]

    def pair(self, room: int) -> tuple[int, int] | None:
        """Two lengths that add up to `room`, as alike as there are: the very short ones are kept for later."""
        both = self.there & (self.mirrored >> (self.slots - room)) & ((2 << room // 2) - 1)
        while both:
            short = both.bit_length() - 1
            if 2 * short != room or len(self.indices[short]) > 1:
                return room - short, short
            both ^= 1 << short
        return None


def split(bins: list[list[int]], count: int, costs: np.ndarray) -> list[list[int]]:
    """`bins` cut until there are `count`: each cut halves the one with the most sequences. `costs`, (n,) float64, are
    of at least `count` sequences."""
    heap = [(-len(taken), number, taken) for number, taken in enumerate(bins)]
    heapq.heapify(heap)
    while len(heap) < count:
        _, _, taken = heapq.heappop(heap)
        ordered = sorted(taken, key=lambda index: -costs[index])
        for half in (ordered[::2], ordered[1::2]):
            heapq.heappush(heap, (-len(half), len(bins) + len(heap), half))
    return [taken for _, _, taken in heap]
