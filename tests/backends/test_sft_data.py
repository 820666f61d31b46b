"""The rows that SFT trains on and validates with: verl's own loaders and loop, with a stand-in for the engine."""

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.sft_trainer import ColdStart
from retool_mcore.config import compose

BATCH = 8


def example(row: int) -> dict[str, torch.Tensor]:
    """Row number `row`: so many tokens and one, the last `row % 3 + 1` of them targets."""
    mask = torch.zeros(row + 4, dtype=torch.int64)
    mask[-(row % 3 + 1) :] = 1
    return {
        "input_ids": torch.full((row + 4,), row),
        "position_ids": torch.arange(row + 4),
        "loss_mask": mask,
    }


class Rank:
    """A data-parallel rank's engine, whose loss of a row's target is the row's number, a mean over all ranks' batch."""

    def __init__(self, rank: int, ranks: int):
        self.rank, self.ranks, self.seen = rank, ranks, []

    def is_mp_src_rank_with_outputs(self):
        return True

    def get_data_parallel_rank(self):
        return self.rank

    def get_data_parallel_size(self):
        return self.ranks

    def sums(self, data) -> tuple[int, int]:
        """(sum of the losses, targets) of this rank's part."""
        rows, masks = data["input_ids"].unbind(), data["loss_mask"].unbind()
        self.seen += [int(row[0]) for row, mask in zip(rows, masks, strict=True) if mask.any()]
        targets = [int(mask.sum()) for mask in masks]
        return sum(int(row[0]) * count for row, count in zip(rows, targets, strict=True)), sum(targets)


def trainer(rank: int, ranks: int, rows: int, seed: int = 1) -> ColdStart:
    made = object.__new__(ColdStart)
    made.config = OmegaConf.create(
        {
            "trainer": {"seed": seed},
            "data": {"train_batch_size": BATCH, "pad_mode": "no_padding", "num_workers": 0},
        }
    )
    made.engine = Rank(rank, ranks)
    made.train_dataset = [example(row) for row in range(40)]
    made.val_dataset = [example(row) for row in range(rows)]
    made.step_with(SimpleNamespace(infer_batch=lambda data: data))
    made._build_dataloader()
    return made


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("rows", [5, 8, 17, 40])
def test_the_validations_loss_is_the_mean_over_the_targets_of_all_rows(rows, ranks):
    """Over the batches of all ranks, as verl takes it: the mean of the batches' losses."""
    made = [trainer(rank, ranks, rows) for rank in range(ranks)]
    for _ in range(2):  # a second validation begins at the first batch again
        losses = []
        for parts in zip(*(one.val_dataloader for one in made), strict=True):
            sums = [one.engine.sums(part) for one, part in zip(made, parts, strict=True)]
            loss = sum(total for total, _ in sums) / sum(targets for _, targets in sums)
            outputs = [tensordict_utils.get_tensordict({}, {"metrics": {"loss": loss}}) for _ in made]
            found = [one.training_client.infer_batch(output) for one, output in zip(made, outputs, strict=True)]
            values = {tensordict_utils.get(output, "metrics")["loss"] for output in found}
            losses.append(values.pop())
            assert not values, "all ranks report one loss"
        expected = [(row, row % 3 + 1) for row in range(rows)]
        mean = sum(row * count for row, count in expected) / sum(count for _, count in expected)
        assert sum(losses) / len(losses) == pytest.approx(mean)
    assert sorted(row for one in made for row in one.engine.seen) == sorted([*range(rows)] * 2)


def order(seed: int, epoch: int = 0, ranks: int = 1, rank: int = 0) -> list[int]:
    made = trainer(rank, ranks, 8, seed)
    made.train_sampler.set_epoch(epoch)
    return [int(row[0]) for batch in made.train_dataloader for row in batch["input_ids"].unbind()]


def test_the_seed_draws_the_order_of_the_rows():
    orders = [order(seed, epoch) for seed in (0, 1, 2) for epoch in (0, 1)]
    assert all(sorted(one) == list(range(40)) for one in orders)
    assert len({tuple(one) for one in orders}) == 6, "no epoch of a seed is another seed's"
    assert order(3) == order(3)
    assert sorted(order(3, ranks=2) + order(3, ranks=2, rank=1)) == list(range(40))


def test_the_runs_seed_is_the_trainers():
    assert compose("sft", ["seed=7"]).verl.trainer.seed == 7


def test_verls_loop_validates_with_the_call_that_is_weighted():
    assert "self.training_client.infer_batch(val_data)" in __import__("inspect").getsource(SFTTrainer.fit)
