"""Micro-batches of a step's sequences beside verl's own: slots filled, and milliseconds to plan them.

    python -m benchmarks.planner.packing
    python -m benchmarks.planner.packing --sequences 1024 --beside 256 --ranks 4

In both, verl's trainer gives every data-parallel rank as many sequences (get_seqlen_balanced_partitions with
equal_size, Karmarkar and Karp). Each rank then cuts its share into micro-batches, as many as the rank that needs most:
verl by rearrange_micro_batches, training here by `fill` of backends/megatron/micro_batches.py. Times are of these cuts,
all ranks one after another. verl's grows with the square of the sequences and more, so both cut `--beside` sequences,
and ours also `--sequences`. Lengths are drawn like ReTool's: a log-normal response cut at 16,384 tokens, and a prompt.
verl's functions get nested tensors of one byte a token, so that copying does not count.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tensordict import TensorDict
from verl.utils import seqlen_balancing

from benchmarks import provenance
from retool_mcore.backends.megatron.micro_batches import fill

RESULT = provenance.RESULTS / "packing.json"
LONGEST = 16384
MEDIANS = {"short (median 2,000)": 2000, "middle (median 5,000)": 5000, "long (median 7,500)": 7500}
SIGMA = 0.75
SLOTS = (18432, 24576, 32768)


def draw(sequences: int, median: int, seed: int) -> np.ndarray:
    """Return the lengths of prompt and response together, (sequences,) int64."""
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


def ours(lengths: np.ndarray, slots: int, least: int) -> list[list[int]]:
    """Return a rank's micro-batches as training makes them, at least `least`."""
    return fill(lengths.tolist(), budget=slots, agree=lambda count: max(count, least))


def verls(lengths: np.ndarray, slots: int, least: int) -> list[list[int]]:
    """Return a rank's micro-batches as verl 0.9.1 makes them in `prepare_micro_batches`, at least `least`."""
    rows = [torch.zeros(length, dtype=torch.int8) for length in lengths.tolist()]
    batch = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, len(rows))
    return seqlen_balancing.rearrange_micro_batches(batch, slots, min_num_micro_batch=least or None)[1]


def cut(shares: list[np.ndarray], slots: int, make: Callable) -> dict:
    """Cut every rank's share into as many micro-batches as the rank that needs most: their number, fill and time."""
    start = time.process_time()
    found = [make(share, slots, 0) for share in shares]
    most = max(map(len, found))
    found = [bins if len(bins) == most else make(share, slots, most) for bins, share in zip(found, shares, strict=True)]
    took = time.process_time() - start
    assert {len(bins) for bins in found} == {most}
    tokens = sum(int(share.sum()) for share in shares)
    return {"fill": tokens / (slots * most * len(shares)), "micro_batches": most * len(shares), "ms": 1000 * took}


def measure(lengths: np.ndarray, slots: int, ranks: int, repeat: int, beside: bool) -> dict:
    workload = seqlen_balancing.calculate_workload(torch.from_numpy(lengths)).tolist()
    shares = [lengths[rank] for rank in seqlen_balancing.get_seqlen_balanced_partitions(workload, ranks, True)]
    bound = max(least_bins(share, slots) for share in shares) * ranks
    row = {"slots": slots, "mean": float(lengths.mean()), "sequences": len(lengths)}
    row |= {"fill_bound": float(lengths.sum() / (bound * slots))}
    runs = [cut(shares, slots, ours) for _ in range(repeat)]
    row["ours"] = runs[0] | {"ms": float(np.median([run["ms"] for run in runs]))}
    return row | ({"verl": cut(shares, slots, verls)} if beside else {})


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
    rows, head = [], provenance.made(("verl", "numpy", "torch", "tensordict"))
    for sequences, beside in ((arguments.sequences, False), (arguments.beside, True)):
        for name, median in MEDIANS.items() if sequences else ():
            lengths = draw(sequences, median, arguments.seed)
            for slots in arguments.slots:
                found = measure(lengths, slots, arguments.ranks, arguments.repeat, beside)
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
