"""SFT goes on in the data where it stood, also with another number of data-parallel ranks."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from retool_mcore.backends.verl.sft_trainer import MarkingHandler

EXAMPLES, BATCH = 48, 8  # of all ranks


def loader(ranks: int, rank: int, workers: int) -> StatefulDataLoader:
    sampler = DistributedSampler(range(EXAMPLES), shuffle=True, num_replicas=ranks, rank=rank, drop_last=True)
    return StatefulDataLoader(range(EXAMPLES), batch_size=BATCH // ranks, sampler=sampler, num_workers=workers)


def batches(loaders: list, count: int) -> list[set[int]]:
    """What the ranks read together, step by step."""
    read = [iter(loader) for loader in loaders]
    return [{int(example) for one in read for example in next(one)} for _ in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 4), (2, 2)])
def test_the_next_batches_are_those_of_a_run_that_was_not_stopped(tmp_path, before, after, workers):
    whole = batches([loader(1, 0, 0)], 5)
    first = [loader(before, rank, workers) for rank in range(before)]
    read = [iter(one) for one in first]
    for _ in range(2):
        for one in read:
            next(one)
    for rank, one in enumerate(first):
        torch.save(one.state_dict(), tmp_path / f"data_{rank}.pt")
    resumed = [loader(after, rank, workers) for rank in range(after)]
    for one in resumed:
        handler = SimpleNamespace(resume_global_step=2, train_dataloader=one)
        MarkingHandler._load_dataloader_state(handler, str(tmp_path))
    assert batches(resumed, 3) == whole[2:]
