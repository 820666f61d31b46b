"""Which trajectories of a step share an optimizer step: drawn at random, the same in every attempt.

verl 0.9.1 trains in the order in which trajectories were finished (TransferQueue's), so the first mini-batch would hold
the short answers and the last, trained on with a policy that has moved by then, those with the most calls. Its own
`actor.shuffle` draws from that order, so that a resumed run draws another batch, and it leaves the data-parallel ranks
of a mini-batch unbalanced.
"""

import numpy as np
from verl.utils.seqlen_balancing import log_seqlen_unbalance

from retool_mcore.recipes.columns import read_problems, real_keys
from retool_mcore.recipes.mini_batches import Cut, partitions


def shuffle(batch, cut: Cut, *, seed: int, step: int) -> dict[str, float]:
    """Reorder `batch` (KVBatchMeta, verl's padding included) in place; returns verl's metrics of the balance.

    What is drawn depends on `seed`, `step`, and which samples of which prompts the batch holds, not on their order or
    on verl's random ids.
    """
    lengths = [tag["seq_len"] for tag in batch.tags]
    parts = partitions(_drawn(batch, seed, step), lengths, cut)
    batch.reorder([row for part in parts for row in part])
    return log_seqlen_unbalance(seqlen_list=lengths, partitions=parts, prefix="global_seqlen")


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
