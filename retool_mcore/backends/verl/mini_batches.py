"""Which trajectories of a step share an optimizer step: drawn at random, the same in every attempt.

verl 0.9.1 trains in the order in which trajectories were finished (TransferQueue's), so the first mini-batch would hold
the short answers and the last, trained on with a policy that has moved by then, those with the most calls. Its own
`actor.shuffle` draws from that order, so that a resumed run draws another batch, and it leaves the data-parallel ranks
of a mini-batch unbalanced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import spearmanr
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from retool_mcore.recipes.columns import read_problems, real_keys


@dataclass(frozen=True)
class Cut:
    """How verl cuts a batch: each of `ranks` data-parallel ranks gets an equal part of its `rows` as they stand, and
    cuts that into its parts of the mini-batches of `size` rows. Raises ValueError where they do not divide."""

    rows: int
    size: int
    ranks: int

    def __post_init__(self):
        if self.rows % self.size or self.size % self.ranks:
            raise ValueError(f"{self} is not whole mini-batches, of which each rank has an equal part.")

    def mini_batch(self, place: int) -> int:
        """The number, from 0, of the mini-batch of the row at `place`."""
        return place % (self.rows // self.ranks) // (self.size // self.ranks)


def shuffle(batch, cut: Cut, *, seed: int, step: int) -> dict[str, float]:
    """Reorder `batch` (KVBatchMeta, verl's padding included) in place; returns verl's metrics of the balance.

    What is drawn depends on `seed`, `step`, and which samples of which prompts the batch holds, not on their order or
    on verl's random ids.
    """
    lengths = [tag["seq_len"] for tag in batch.tags]
    parts = partitions(_drawn(batch, seed, step), lengths, cut)
    batch.reorder([row for part in parts for row in part])
    return log_seqlen_unbalance(seqlen_list=lengths, partitions=parts, prefix="global_seqlen")


def partitions(order: Sequence[int], lengths: Sequence[int], cut: Cut) -> list[list[int]]:
    """The rows of each rank: every `cut.size` of `order` are a mini-batch, of which each rank gets an equal number and
    about an equal share of the work. `lengths`: tokens of each row."""
    work = calculate_workload(torch.tensor(lengths))
    parts: list[list[int]] = [[] for _ in range(cut.ranks)]
    for start in range(0, cut.rows, cut.size):
        chosen = list(order[start : start + cut.size])
        shares = get_seqlen_balanced_partitions(work[chosen].tolist(), k_partitions=cut.ranks, equal_size=True)
        for part, share in zip(parts, shares, strict=True):
            part += [chosen[number] for number in share]
    return parts


def order_correlation(numbers: Sequence[int], records: Sequence[Mapping]) -> dict[str, float]:
    """Spearman's correlation of the mini-batch's number with a trajectory's tokens, calls and time of its end.

    Without a suffix the largest of the three in magnitude. By chance alone their standard deviation is
    1 / sqrt(trajectories - 1). {} for a step of one mini-batch; 0 where all values are equal.
    """
    if len(set(numbers)) < 2:
        return {}
    columns = {
        "tokens": [len(record["response_ids"]) for record in records],
        "calls": [len(record["calls"]) for record in records],
        "finished": [record["started"] + record["generate_s"] + record["tool_s"] for record in records],
    }
    apart = {name: values for name, values in columns.items() if len(set(values)) > 1}
    found = dict.fromkeys(columns, 0.0) | {name: float(spearmanr(numbers, v).statistic) for name, v in apart.items()}
    return {"batch/order_correlation": max(found.values(), key=abs)} | {
        f"batch/order_correlation/{name}": value for name, value in found.items()
    }


def _drawn(batch, seed: int, step: int) -> list[int]:
    """All rows in a random order that does not depend on the order in which they stand."""
    places = {key: place for place, key in enumerate(batch.keys)}
    keys = real_keys(batch)
    problems = read_problems(keys, batch.partition_id)
    # The key's first part is verl's random id of the prompt, the others number its samples.
    named = sorted(
        (source, index, batch.tags[places[key]].get("global_steps", 0), drawn.draw, *map(int, key.split("_")[1:]), key)
        for key, (source, index, drawn) in zip(keys, problems, strict=True)
    )
    settled = [places[key] for *_, key in named]
    settled += sorted(set(places.values()) - set(settled))
    return [settled[number] for number in np.random.default_rng((seed, step)).permutation(len(settled))]
