"""The curriculum at the trainer's door to verl's data loader: what is passed over, and a resume to the same prompts."""

from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.trainer.ppo.utils import create_rl_sampler

from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.data.curriculum import Curriculum

ROWS = 40


def collate(items):
    named = {"raw_prompt": items, "index": items, "data_source": ["d"] * len(items)}
    return {name: np.array(values, dtype=object) for name, values in named.items()}


def trainer() -> RetoolTrainer:
    made = object.__new__(RetoolTrainer)
    data = OmegaConf.create({"shuffle": True, "seed": 5})
    sampler = create_rl_sampler(data, range(ROWS))
    made.train_dataloader = StatefulDataLoader(range(ROWS), batch_size=1, sampler=sampler, collate_fn=collate)
    made.train_dataloader_it = None
    made.curriculum = Curriculum(weights=True, retire=2, seed=5, problems=[f"d/{n}" for n in range(1, ROWS)])
    return made


def fetched(made: RetoolTrainer, count: int) -> list[int]:
    """The problems of the next `count` fetches; each is measured at once, by its number."""
    found = []
    for _ in range(count):
        found.append(int(made._fetch_one_gen_batch()["index"][0]))
        made.curriculum.measure(f"d/{found[-1]}", min(found[-1] / 20, 1.0))
    return found


def test_a_resumed_run_draws_the_same_prompts_from_verls_loader(tmp_path: Path):
    first, second = trainer(), trainer()
    before = fetched(first, 70)
    assert first.fetched > 70 and first.curriculum.passed_over == first.fetched - 70
    assert 0 not in before  # outside of the problems that may be drawn
    torch.save(first.train_dataloader.state_dict(), tmp_path / "data.pt")
    first.curriculum.save(tmp_path)
    assert first.curriculum.retired and {int(name[2:]) for name in first.curriculum.retired} <= set(range(20, ROWS))
    second.train_dataloader.load_state_dict(torch.load(tmp_path / "data.pt", weights_only=False))
    second.curriculum.load(tmp_path)
    after = fetched(first, 90)
    assert fetched(second, 90) == after
    assert second.curriculum.rates == first.curriculum.rates
    assert sum(8 <= n <= 12 for n in after) > 3 * sum(n in (1, 2, 18, 19) for n in after)
