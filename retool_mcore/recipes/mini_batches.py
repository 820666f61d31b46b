"""Which trajectories of a step share an optimizer step, and which data-parallel rank reads them."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """How the engines cut a batch: each of `ranks` data-parallel ranks gets an equal part of its `rows` as they stand,
    and cuts that into its parts of the mini-batches of `size` rows. Raises ValueError where they do not divide."""

    rows: int
    size: int
    ranks: int

    def __post_init__(self):
        if self.rows % self.size or self.size % self.ranks:
            raise ValueError(f"{self} does not divide into mini-batches with an equal part for each rank.")

    def mini_batch(self, place: int) -> int:
        """The number, from 0, of the mini-batch of the row at `place`."""
        return place % (self.rows // self.ranks) // (self.size // self.ranks)


@dataclass(frozen=True)
class Layout:
    """How a batch is sent whose mini-batches have different numbers of rows, since its episodes have.

    places: (sent rows,) of each row that is sent its number in the batch, -1 for one that only fills a mini-batch.
    size: rows that are sent of each mini-batch, a multiple of the ranks. mini_batches: (rows,) the number of each row's
    mini-batch.
    """

    places: tuple[int, ...]
    size: int
    mini_batches: tuple[int, ...]


def laid_out(parts: Sequence[Sequence[int]], rows: Sequence[int], cut: Cut) -> Layout | None:
    """Return how a batch is sent whose episodes stand in the order of `parts`, the episodes of each rank, and have so
    many `rows` each; None where each has one."""
    if max(rows) == 1:
        return None
    share = cut.size // cut.ranks
    chunks = [
        (number // share, [rows[episode] for episode in part[number : number + share]])
        for part in parts
        for number in range(0, len(part), share)
    ]
    width = max(sum(counts) for _, counts in chunks)
    places: list[int] = []
    mini_batches: list[int] = []
    for number, counts in chunks:
        first = len(mini_batches)
        mini_batches += [number] * sum(counts)
        places += [*range(first, len(mini_batches)), *[-1] * (width - sum(counts))]
    return Layout(tuple(places), width * cut.ranks, tuple(mini_batches))


def partitions(order: Sequence[int], lengths: Sequence[int], cut: Cut) -> list[list[int]]:
    """The rows of each rank: every `cut.size` of `order` are a mini-batch; each rank gets an equal number of it and
    about an equal share of the work. `lengths`: tokens of each row."""
    parts: list[list[int]] = [[] for _ in range(cut.ranks)]
    for start in range(0, cut.rows, cut.size):
        chosen = [int(row) for row in order[start : start + cut.size]]
        shares = balanced([work(lengths[row]) for row in chosen], cut.ranks)
        for part, share in zip(parts, shares, strict=True):
            part += [chosen[number] for number in share]
    return parts


def work(tokens: int) -> int:
    """The cost of a sequence of so many tokens: attention's part grows with their square (of a model of 7B)."""
    return 24576 * tokens + tokens**2


def balanced(costs: Sequence[int], parts: int) -> list[list[int]]:
    """The numbers of `costs` in `parts` lists of equal size, each ascending, whose sums are about equal.

    By the largest differencing method (Karmarkar and Karp 1982), with the choices among equals that verl makes. Raises
    ValueError where `parts` does not divide their number.
    """
    if len(costs) % parts:
        raise ValueError(f"{len(costs)} sequences have no {parts} equal parts.")
    ascending = sorted((cost, number) for number, cost in enumerate(costs))
    heap: list[_Split] = []
    for start in range(0, len(ascending), parts):
        heapq.heappush(heap, _Split([(cost, 1, [(number, cost)]) for cost, number in ascending[start : start + parts]]))
    while len(heap) > 1:
        first, second = heapq.heappop(heap), heapq.heappop(heap)
        joined = zip(first.sets, reversed(second.sets), strict=True)
        heapq.heappush(heap, _Split([(a[0] + b[0], a[1] + b[1], a[2] + b[2]) for a, b in joined]))
    return [sorted(number for number, _ in items) for _, _, items in heap[0].sets]


class _Split:
    """Sets of sequences, (sum of the costs, size, [(number, cost)]), the heaviest first. The heap's first is the split
    with the largest difference between its heaviest and its lightest set."""

    def __init__(self, sets: list[tuple[int, int, list[tuple[int, int]]]]):
        self.sets = sorted(sets, reverse=True)
        self.spread = self.sets[0][0] - self.sets[-1][0]

    def __lt__(self, other: "_Split") -> bool:
        return self.sets[0] > other.sets[0] if self.spread == other.spread else self.spread > other.spread
