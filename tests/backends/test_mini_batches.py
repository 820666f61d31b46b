"""Which trajectories share an optimizer step, by verl's own balancing and padding with TransferQueue over a dict."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import transfer_queue
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.metrics.order import order_correlation
from retool_mcore.recipes.mini_batches import Cut
from retool_mcore.rollout.seeds import DRAW, ORDER

PROMPTS, N, SIZE = 64, 4, 8  # a step of 8 mini-batches


def finished(prompts=PROMPTS, *, attempt=0, problems=PROMPTS):
    """A step's trajectories in the order of their ends, as TransferQueue lists them: the longer, the later.

    Of fewer `problems` than `prompts` some are drawn more than once.
    """
    rows = []
    for prompt in range(prompts):
        for sample in range(N):
            length = 20 + (prompt * N + sample) * 7919 % 997
            rows.append((length, prompt % problems, sample, prompt // problems))
    rows.sort()
    keys = [f"{attempt}-{index}-{draw}_{sample}_0" for _, index, sample, draw in rows]
    return keys, {key: row for key, row in zip(keys, rows, strict=True)}


def balanced(monkeypatch, keys, rows, *, ranks=1, step=3, seed=1):
    """The batch after the trainer's `_balance_batch`, and its metrics."""

    def get(keys, partition_id, select_fields):
        found = {"index": [rows[key][1] for key in keys], "data_source": ["arithmetic"] * len(keys)}
        found |= {DRAW: [rows[key][3] for key in keys], ORDER: [0] * len(keys)}
        return {name: found[name] for name in select_fields}

    monkeypatch.setattr(transfer_queue, "kv_batch_get", get)
    trainer = object.__new__(RetoolTrainer)
    actor = {"ppo_mini_batch_size": SIZE, "data_loader_seed": seed}
    trainer.config = OmegaConf.create(
        {"actor_rollout_ref": {"actor": actor, "rollout": {"n": N}}, "trainer": {"critic_warmup": 0}}
    )
    trainer.use_critic, trainer.global_steps = False, step
    trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(ranks))})
    trainer.tokenizer, trainer.observer = SimpleNamespace(eos_token_id=0), SimpleNamespace(cut=None)
    batch = KVBatchMeta(partition_id="train", keys=list(keys), tags=[{"seq_len": rows[key][0]} for key in keys])
    metrics = {}
    return trainer._balance_batch(batch, metrics), metrics


def records_of(batch, rows):
    ends = {key: place for place, key in enumerate(rows)}
    return [
        {
            "response_ids": range(rows[key][0]),
            "calls": range(rows[key][0] // 200),
            "started": 0.0,
            "generate_s": float(ends[key]),
            "tool_s": 0.0,
        }
        for key in batch.keys
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_mini_batchs_number_tells_nothing_about_its_trajectories(monkeypatch, ranks):
    keys, rows = finished()
    batch, _ = balanced(monkeypatch, keys, rows, ranks=ranks)
    assert sorted(batch.keys) == sorted(keys)
    cut = Cut(len(keys), SIZE * N, ranks)
    numbers = [cut.mini_batch(place) for place in range(len(keys))]
    assert np.bincount(numbers).tolist() == [SIZE * N] * 8
    by_chance = 3 / (len(keys) - 1) ** 0.5
    found = order_correlation(numbers, records_of(batch, rows))
    assert set(found) == {"batch/order_correlation"} | {
        f"batch/order_correlation/{name}" for name in ("tokens", "calls", "finished")
    }
    assert all(abs(value) < by_chance for value in found.values())


def test_verls_own_order_is_found_out():
    keys, rows = finished()
    batch = KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])
    numbers = [place // (SIZE * N) for place in range(len(keys))]
    assert order_correlation(numbers, records_of(batch, rows))["batch/order_correlation"] > 0.98


@pytest.mark.parametrize("problems", [PROMPTS, PROMPTS // 3])
def test_a_resumed_run_draws_the_same_mini_batches(monkeypatch, problems):
    drawn = []
    for attempt in (0, 1):
        keys, rows = finished(attempt=attempt, problems=problems)
        if attempt:
            random.Random(5).shuffle(keys)  # the engines finished in another order
        batch, _ = balanced(monkeypatch, keys, rows, ranks=2)
        drawn.append([rows[key] for key in batch.keys])
    assert drawn[0] == drawn[1]
    keys, rows = finished()
    for other in ({"step": 4}, {"seed": 2}):
        batch, _ = balanced(monkeypatch, keys, rows, ranks=2, **other)
        assert [rows[key] for key in batch.keys] != drawn[0]


def test_the_ranks_of_every_mini_batch_have_equal_work(monkeypatch):
    keys, rows = finished()
    batch, metrics = balanced(monkeypatch, keys, rows, ranks=4)
    lengths = np.array([rows[key][0] for key in batch.keys]).reshape(4, 8, SIZE)  # rank, mini-batch, trajectory
    totals = lengths.sum(axis=2)
    assert (totals.max(axis=0) / totals.min(axis=0)).max() < 1.05
    assert metrics["global_seqlen/balanced_max"] == totals.sum(axis=1).max()


def test_one_mini_batch_has_no_order():
    assert order_correlation([0, 0, 0], [{}] * 3) == {}


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="whole mini-batches"):
        Cut(rows=100, size=32, ranks=2)
