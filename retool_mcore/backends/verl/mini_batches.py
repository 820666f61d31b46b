"""Which trajectories of a step share an optimizer step: drawn at random, the same in every attempt.

verl 0.9.1 trains in the order in which trajectories were finished (TransferQueue's), so the first mini-batch would hold
the short answers and the last, trained on with a policy that has moved by then, those with the most calls. Its own
`actor.shuffle` draws from that order, so that a resumed run draws another batch, and it leaves the data-parallel ranks
of a mini-batch unbalanced.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import transfer_queue
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions, log_seqlen_unbalance

from retool_mcore.recipes.columns import real_keys, unwrap


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


def _drawn(batch, seed: int, step: int) -> list[int]:
    """All rows in a random order that does not depend on the order in which they stand."""
    places = {key: place for place, key in enumerate(batch.keys)}
    keys = real_keys(batch)
    fields = ["data_source", "index"]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    prompts = zip(*(unwrap(data[name]) for name in fields), strict=True)
    # The key's first part is verl's random id of the prompt, the others number its samples.
    named = sorted(
        (str(source), int(index), *map(int, key.split("_")[1:]), places[key])
        for key, (source, index) in zip(keys, prompts, strict=True)
    )
    settled = [place for *_, place in named]
    settled += sorted(set(places.values()) - set(settled))
    return [settled[number] for number in np.random.default_rng((seed, step)).permutation(len(settled))]
