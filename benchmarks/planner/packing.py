"""Packing and balance of a step's sequences beside verl's own: slots filled, cost over ranks, milliseconds.

    python -m benchmarks.planner.packing
    python -m benchmarks.planner.packing --sequences 1024 --beside 256 --ranks 4

verl cuts a step in two: its trainer gives every data-parallel rank as many sequences (get_seqlen_balanced_partitions
with equal_size, Karmarkar and Karp), and each rank cuts its share into micro-batches (rearrange_micro_batches; as many
as the rank that needs most). Here `plan` does both at once; in training each
rank packs its share (retool_mcore/planner/packing.py). verl's time grows with the
square
of the sequences and more, so both pack `--beside` sequences, and ours also `--sequences`.
Lengths are drawn like ReTool's: a log-normal response cut at 16,384 tokens, and a prompt. Cost is the 32B model's
forward FLOPs, linear and quadratic. verl's functions get nested tensors of one byte a token, so that copying does not
count.
"""

import argparse
import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import provenance
from retool_mcore.errors import UserError
from retool_mcore.planner.packing import Cost, pack, split
from retool_mcore.planner.shape import SHAPES

RESULT = provenance.RESULTS / "packing.json"
SHAPE = "qwen2.5-32b"
LONGEST = 16384
MEDIANS = {"short (median 2,000)": 2000, "middle (median 5,000)": 5000, "long (median 7,500)": 7500}
SIGMA = 0.75
SLOTS = (18432, 24576, 32768)

LEVEL = 0.002  # difference of the costliest and the cheapest rank, in means, at which levelling ends
MOVES = 8  # of sequences between ranks, a rank


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


def draw(sequences: int, median: int, seed: int) -> np.ndarray:
    """(sequences,) int64: prompt and response together."""
    random = np.random.default_rng(seed)
    response = np.minimum(LONGEST, random.lognormal(np.log(median), SIGMA, sequences)).astype(np.int64) + 1
    return response + random.integers(80, 600, sequences)


def least_bins(lengths: np.ndarray, slots: int) -> int:
    """A lower bound of the number of micro-batches: L2 of Martello and Toth 1990. None can be packed into fewer."""
    rising = np.sort(lengths)
    sums = np.concatenate([[0], np.cumsum(rising)])
    best = -(-int(sums[-1]) // slots)
    for small in [0, *np.unique(rising[rising <= slots // 2]).tolist()]:
        alone = np.searchsorted(rising, slots - small, side="right")
        half = np.searchsorted(rising, slots // 2, side="right")
        least = np.searchsorted(rising, small, side="left")
        room = (alone - half) * slots - int(sums[alone] - sums[half])
        rest = max(0, -(-(int(sums[half] - sums[least]) - room) // slots))
        best = max(best, len(rising) - half + rest)
    return int(best)


def verl_packing(lengths: np.ndarray, slots: int, ranks: int, cost: Cost) -> Packing:
    """What verl 0.9.1 does in `_balance_batch` and, on each rank, in `prepare_micro_batches`."""
    import torch
    from tensordict import TensorDict
    from verl.utils import seqlen_balancing

    workload = seqlen_balancing.calculate_workload(torch.from_numpy(lengths)).tolist()
    shares = seqlen_balancing.get_seqlen_balanced_partitions(workload, ranks, equal_size=True)

    def cut(share: list[int], least: int | None) -> list[list[int]]:
        rows = [torch.zeros(int(lengths[index]), dtype=torch.int8) for index in share]
        batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, len(share))
        _, found = seqlen_balancing.rearrange_micro_batches(batch, slots, min_num_micro_batch=least)
        return [[share[index] for index in taken] for taken in found]

    found = [cut(share, None) for share in shares]
    most = max(map(len, found))
    found = [bins if len(bins) == most else cut(share, most) for bins, share in zip(found, shares, strict=True)]
    return Packing(found, slots, lengths, cost)


def measure(lengths: np.ndarray, slots: int, ranks: int, cost: Cost, repeat: int, beside: bool) -> dict:
    times = []
    for _ in range(repeat):
        start = time.process_time()
        ours = plan(lengths, slots=slots, ranks=ranks, cost=cost)
        times.append(time.process_time() - start)
    found = {"ours": (ours, float(np.median(times)))}
    if beside:
        start = time.process_time()
        found["verl"] = verl_packing(lengths, slots, ranks, cost), time.process_time() - start
    bound = -(-least_bins(lengths, slots) // ranks) * ranks
    row = {"slots": slots, "mean": float(lengths.mean()), "cut": float((lengths > LONGEST).mean())}
    row |= {"sequences": len(lengths), "fill_bound": float(lengths.sum() / (bound * slots))}
    for name, (packing, took) in found.items():
        row[name] = {
            "fill": packing.fill,
            "imbalance": packing.imbalance,
            "micro_batches": sum(map(len, packing.ranks)),
            "ms": 1000 * took,
        }
    return row


def table(rows: list[dict]) -> Table:
    result = Table()
    headings = (
        "lengths",
        "number",
        "mean",
        "slots",
        "fill %",
        "verl",
        "at best",
        "max/mean",
        "verl",
        "ms",
        "verl",
        "ratio",
    )
    for heading in headings:
        result.add_column(heading, justify="left" if heading == "lengths" else "right", no_wrap=True)
    for row in rows:
        ours, verl = row["ours"], row.get("verl")
        result.add_row(
            row["lengths"],
            f"{row['sequences']:,}",
            f"{row['mean']:,.0f}",
            f"{row['slots']:,}",
            f"{100 * ours['fill']:.2f}",
            f"{100 * verl['fill']:.2f}" if verl else "",
            f"{100 * row['fill_bound']:.2f}",
            f"{ours['imbalance']:.4f}",
            f"{verl['imbalance']:.4f}" if verl else "",
            f"{ours['ms']:.0f}",
            f"{verl['ms']:,.0f}" if verl else "",
            f"{verl['ms'] / ours['ms']:.0f}" if verl else "",
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=8192)
    parser.add_argument("--beside", type=int, default=512, help="sequences that verl packs too; 0: none")
    parser.add_argument("--ranks", type=int, default=2, help="data-parallel ranks")
    parser.add_argument("--slots", type=int, nargs="+", default=SLOTS, help="tokens of a micro-batch at most")
    parser.add_argument("--repeat", type=int, default=5, help="of ours; the median counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    cost = Cost.of(SHAPES[SHAPE])
    rows, head = [], provenance.made(("verl", "numpy", "torch", "tensordict"))
    for sequences, beside in ((arguments.sequences, False), (arguments.beside, True)):
        for name, median in MEDIANS.items() if sequences else ():
            lengths = draw(sequences, median, arguments.seed)
            for slots in arguments.slots:
                found = measure(lengths, slots, arguments.ranks, cost, arguments.repeat, beside)
                rows.append({"lengths": name} | found)
    Console(width=140).print(table(rows))
    compared = [row for row in rows if "verl" in row]
    if compared:
        saved = [1 - row["ours"]["micro_batches"] / row["verl"]["micro_batches"] for row in compared]
        print(f"micro-batches saved: {100 * min(saved):.1f} to {100 * max(saved):.1f} %")
    result = {
        "ranks": arguments.ranks,
        "time": "CPU seconds of the process",
        "rows": rows,
    }
    provenance.write(arguments.out, head, result)


if __name__ == "__main__":
    main()
