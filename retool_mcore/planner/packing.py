"""Sequences into full micro-batches, and micro-batches evenly over the data-parallel ranks.

Packing is bin packing: the longest sequence that is left opens a micro-batch; then one that nearly fills it, or two
that fill it exactly, are looked for among the lengths there are (a two-sum over a bit mask), and only without such a
pair is it the longest that fits (best fit decreasing: Johnson 1973). Thousands of sequences have nearly every length,
so nearly every micro-batch comes out full. A rank's work is the sum of its micro-batches' costs, linear and quadratic
in each length.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import Shape

# A single sequence that leaves at most this share of the slots empty is better than two that leave none: the short ones
# are what fills up the micro-batches that are still to come.
NEARLY = 0.001
LEVEL = 0.002  # difference of the costliest and the cheapest rank, in means, at which levelling ends
MOVES = 8  # of sequences between ranks, a rank


@dataclass(frozen=True)
class Cost:
    """What a sequence of l tokens costs: linear * l + quadratic * l^2, in any unit."""

    linear: float = 1.0
    quadratic: float = 0.0

    @classmethod
    def of(cls, shape: Shape) -> Self:
        """Forward FLOPs: 2 a weight and token; 4 a query's width and pair, of which causal attention has l^2 / 2."""
        return cls(
            linear=2.0 * (shape.layers * shape.layer_matrices + shape.vocab * shape.hidden),
            quadratic=2.0 * shape.layers * shape.q_width,
        )

    def __call__(self, lengths: np.ndarray) -> np.ndarray:
        """(n,) tokens to (n,) float64."""
        lengths = np.asarray(lengths, np.float64)
        return lengths * (self.linear + self.quadratic * lengths)


@dataclass(frozen=True)
class Packing:
    """`ranks[r]` are the micro-batches of data-parallel rank r, each a list of indices into the lengths."""

    ranks: list[list[list[int]]]
    slots: int
    lengths: np.ndarray  # (n,) int64
    cost: Cost

    @property
    def fill(self) -> float:
        """Tokens over token slots, of all micro-batches of all ranks."""
        return float(self.lengths.sum() / (self.slots * sum(map(len, self.ranks))))

    @property
    def imbalance(self) -> float:
        """Cost of the costliest rank over the mean."""
        costs = self.cost(self.lengths)
        ranks = [sum(float(costs[micro_batch].sum()) for micro_batch in rank) for rank in self.ranks]
        return max(ranks) * len(ranks) / sum(ranks)


def plan(lengths: Sequence[int], *, slots: int, ranks: int = 1, cost: Cost | None = None, multiple: int = 1) -> Packing:
    """Micro-batches of at most `slots` tokens, as many on each of `ranks` ranks, of nearly the same cost.

    Args:
        lengths: tokens of each sequence.
        cost: of a sequence; default: its tokens.
        multiple: of each rank's number of micro-batches (interleaved pipelines want whole groups).

    Raises:
        UserError: a sequence is longer than `slots` or empty, or there are fewer sequences than micro-batches.
    """
    tokens = np.asarray(lengths, np.int64)
    cost = cost or Cost()
    if ranks < 1 or multiple < 1:
        raise UserError(f"{ranks} ranks with a multiple of {multiple} micro-batches: expected 1 or more of each.")
    bins = pack(tokens, slots)
    count = -(-len(bins) // (ranks * multiple)) * ranks * multiple
    if count > len(tokens):
        raise UserError(
            f"{len(tokens)} sequences do not make {count} micro-batches, {count // ranks} on each of {ranks} ranks."
        )
    costs = cost(tokens)
    spread_bins = spread(split(bins, count, costs), costs, ranks)
    _level(spread_bins, tokens, costs, slots)
    return Packing(spread_bins, slots, tokens, cost)


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
        self.there = np.zeros(slots + 1, bool)
        self.there[self.distinct] = True

    def take(self, length: int) -> int:
        indices = self.indices[length]
        index = indices.pop()
        if not indices:
            self.there[length] = False
            self.distinct.pop(bisect_left(self.distinct, length))
        return index

    def longest(self, room: int) -> int:
        return self.distinct[bisect_right(self.distinct, room) - 1]

    def pair(self, room: int) -> tuple[int, int] | None:
        """Two lengths that add up to `room`, as alike as there are: the very short ones are kept for later."""
        shortest = self.distinct[0]
        half = room // 2
        if half < shortest:
            return None
        both = self.there[shortest : half + 1] & self.there[room - half : room - shortest + 1][::-1]
        for offset in np.flatnonzero(both)[:-3:-1].tolist():
            short = shortest + offset
            if 2 * short != room or len(self.indices[short]) > 1:
                return room - short, short
        return None


def split(bins: list[list[int]], count: int, costs: np.ndarray) -> list[list[int]]:
    """`bins` cut until there are `count`: each cut halves the one with the most sequences. `costs`, (n,) float64, are
    of the sequences, of which there must be `count` or more."""
    heap = [(-len(taken), number, taken) for number, taken in enumerate(bins)]
    heapq.heapify(heap)
    while len(heap) < count:
        _, _, taken = heapq.heappop(heap)
        ordered = sorted(taken, key=lambda index: -costs[index])
        for half in (ordered[::2], ordered[1::2]):
            heapq.heappush(heap, (-len(half), len(bins) + len(heap), half))
    return [taken for _, _, taken in heap]


def spread(bins: list[list[int]], costs: np.ndarray, ranks: int) -> list[list[list[int]]]:
    """`bins` over `ranks` ranks, as many on each: the costliest first, each to the rank that has the least so far
    (Graham 1969). `costs`, (n,) float64, are of the sequences."""
    each = len(bins) // ranks
    weights = [float(costs[taken].sum()) for taken in bins]
    result: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [(0.0, rank) for rank in range(ranks)]
    for number in sorted(range(len(bins)), key=lambda number: -weights[number]):
        load, rank = heapq.heappop(loads)
        result[rank].append(bins[number])
        if len(result[rank]) < each:
            heapq.heappush(loads, (load + weights[number], rank))
    return result


def _level(ranks: list[list[list[int]]], tokens: np.ndarray, costs: np.ndarray, slots: int) -> None:
    """Moves single sequences from the costliest rank to room in the cheapest one, as long as that brings them closer.

    Rounding the number of micro-batches up leaves some with room, which the spreading alone cannot even out.
    """
    loads = [float(sum(costs[taken].sum() for taken in rank)) for rank in ranks]
    for _ in range(MOVES * len(ranks)):
        high, low = int(np.argmax(loads)), int(np.argmin(loads))
        gap = loads[high] - loads[low]
        if gap <= LEVEL * sum(loads) / len(loads):
            return
        room, target = max((slots - int(tokens[taken].sum()), number) for number, taken in enumerate(ranks[low]))
        movable = [
            (abs(gap / 2 - float(costs[index])), index, taken)
            for taken in ranks[high]
            if len(taken) > 1
            for index in taken
            if tokens[index] <= room and costs[index] < gap
        ]
        if not movable:
            return
        _, index, taken = min(movable, key=lambda move: move[:2])
        taken.remove(index)
        ranks[low][target].append(index)
        loads[high] -= float(costs[index])
        loads[low] += float(costs[index])
