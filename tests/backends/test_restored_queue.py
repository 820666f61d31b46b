"""What a start takes over of TransferQueue from a checkpoint of a run whose rollouts run ahead."""

from types import SimpleNamespace

import pytest
from memory_queue import MemoryQueue
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from retool_mcore.backends.verl import trainer
from retool_mcore.backends.verl.trainer import RetoolTrainerMixin
from retool_mcore.state import alarms

WAITS = {"a": {"is_prompt": True, "status": "finished"}, "b": {"is_prompt": True, "status": "running"}}
OF_THOSE = {"a_0": {"status": "success"}, "a_1": {"status": "success"}, "b_0": {"status": "success"}}
TRAINED_ON = {"c_0": {"status": "success"}, "c_1": {"status": "success"}}  # by the checkpoint's step, its prompt gone


class Trainer(RetoolTrainerMixin, PPOTrainer):
    trainer_mode = "separate_async"


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Loads a checkpoint after which so many prompts are left out; (the trainer, what its queue holds, fetches)."""

    def loaded(left_out):
        queue, fetches = MemoryQueue(tags=WAITS | OF_THOSE | TRAINED_ON), []
        monkeypatch.setattr(trainer.transfer_queue, "kv_list", lambda partition_id: queue.kv_list())
        monkeypatch.setattr(trainer.transfer_queue, "kv_clear", queue.kv_clear)
        monkeypatch.setattr(PPOTrainer, "_load_checkpoint", lambda self: setattr(self, "_restored_tq_prompt_count", 2))
        monkeypatch.setattr(PPOTrainer, "_fetch_one_gen_batch", lambda self: fetches.append(1))
        monkeypatch.setattr(alarms, "left_out", lambda *_: left_out)
        made = object.__new__(Trainer)
        made.curriculum, made.global_steps = SimpleNamespace(load=lambda _: None), 3
        made.config = OmegaConf.create({"retool": {"stage_dir": str(tmp_path)}, "trainer": {"default_local_dir": "c"}})
        made._load_checkpoint()
        return made, set(queue.tags), len(fetches)

    return loaded


def test_what_a_step_was_trained_on_is_not_held_for_ever(load):
    made, held, fetches = load(left_out=0)
    assert held == {*WAITS, *OF_THOSE} and made._restored_tq_prompt_count == 2 and fetches == 0


def test_prompts_that_led_to_an_alarm_are_left_out(load):
    made, held, fetches = load(left_out=5)
    assert held == set() and made._restored_tq_prompt_count == 0 and fetches == 5
