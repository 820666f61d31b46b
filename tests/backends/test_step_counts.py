"""What counts in a step that is trained in parts (pipeline=async): verl's aggregator takes means over them."""

from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from retool_mcore.backends.verl.separate import SeparateTrainer


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_counts_are_of_the_whole_step(monkeypatch, parts):
    made = object.__new__(SeparateTrainer)
    made.config = OmegaConf.create({"data": {"train_batch_size": 8}})
    made.parameter_sync_step, made.global_steps = parts, 3
    made.observer = SimpleNamespace(begin_step=lambda: None)
    made.alarms = SimpleNamespace(judge=lambda *_: None)
    monkeypatch.setattr(SeparateTrainer, "prepare_step", lambda self: {})

    def step_once(self, metrics, timing_raw, size):
        number = self.local_trigger_step
        metrics |= {"filters/groups/all_equal": number + 1, "filters/samples/kept": size, "audit/policy_tokens": 10}
        metrics |= {"actor/entropy": float(number), "sandbox/error_share": 0.1 * number}
        keys = [f"{number}_{row}" for row in range(size)]
        return SimpleNamespace(keys=keys, tags=[{}] * size, partition_id="train")

    monkeypatch.setattr(PPOTrainer, "_step_once", step_once)
    for _ in range(2):  # a step does not count the one before
        made.step(metrics := {}, {})
    assert metrics["filters/groups/all_equal"] == sum(range(parts + 1))
    assert metrics["filters/samples/kept"] == 8 and metrics["audit/policy_tokens"] == 10 * parts
    assert metrics["actor/entropy"] == pytest.approx((parts - 1) / 2)  # a mean stays one
    assert metrics["sandbox/error_share"] == pytest.approx(0.1 * (parts - 1))  # and a share runs on
