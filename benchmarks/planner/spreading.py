"""Full micro-batches (retool_mcore/planner/packing.py) evenly over the data-parallel ranks: what a trainer that cut a
step at once could reach. A rank's work is the sum of its micro-batches' costs, linear and quadratic in each length."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retool_mcore.errors import UserError
from retool_mcore.planner.packing import Cost, pack, split
from retool_mcore.planner.shape import Shape

LEVEL = 0.002  # difference of the costliest and the cheapest rank, in means, at which levelling ends
MOVES = 8  # of sequences between ranks, a rank


def forward_cost(shape: Shape) -> Cost:
    """Forward FLOPs: 2 a weight and token; 4 a query's width and pair, of which causal attention has l^2 / 2."""
    return Cost(
        linear=2.0 * (shape.layers * shape.layer_matrices + shape.vocab * shape.hidden),
        quadratic=2.0 * shape.layers * shape.q_width,
    )


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
