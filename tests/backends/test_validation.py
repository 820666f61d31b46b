"""Validation in verl's own loop, with a stand-in for the engine: which checkpoint is the best, and when a run ends."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
from omegaconf import OmegaConf
from trainer_double import surround
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.trainer import MarkComplete, RetoolTrainer
from retool_mcore.config import compose
from retool_mcore.rollout.seeds import request_seed
from retool_mcore.state import checkpoints, stop
from retool_mcore.state.progress import read_steps

PROBLEMS, SAMPLES = 4, 4


class Engine:
    """verl's worker group; its checkpoints hold no weights."""

    def save_checkpoint(self, local_path, *_, **__):
        (Path(local_path) / "model/huggingface").mkdir(parents=True)

    def load_checkpoint(self, *_, **__):
        pass


class Loader(list):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def one_attempt(
    folder, patch, right: dict[int, int], *, training=None, steps=12, save=2, every=2, limit=None, stop_at=0
):
    """RL to its end or stop; right: correct samples of each problem at the validation of a step. Returns steps run."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "metrics").mkdir(exist_ok=True)
    checkpoints.repair(folder / "checkpoints")
    stop.clear(folder)
    file = folder / f"metrics/attempt_{len(list((folder / 'metrics').iterdir())) + 1:03d}.jsonl"

    def log(data, step):
        with file.open("a") as out:
            out.write(json.dumps({"step": step, "data": data}, default=float) + "\n")

    def outcomes(self):
        """In the place of verl's method: what it hands on, from scripted verdicts, in another order of samples."""
        uids = [f"u{n}" for n in range(PROBLEMS)]
        acc = [float(sample < right[self.global_steps]) for sample in range(SAMPLES) for _ in uids]
        expected = {("made", uid): SAMPLES for uid in uids}
        return self._val_metrics_update(
            data_sources=["made"] * len(acc),
            sample_uids=uids * SAMPLES,
            reward_extra_infos_dict={"acc": acc},
            sample_turns=[],
            expected_acc_counts=expected,
        )

    patch.setattr(trainer_base, "Tracking", lambda **_: SimpleNamespace(log=log))
    patch.setattr(trainer_base.SkipManager, "init", lambda config: None)
    patch.setattr(trainer_base.tq, "kv_clear", lambda **_: None)
    patch.setattr(trainer_base.PPOTrainer, "_validate", outcomes)
    trainer = object.__new__(RetoolTrainer)
    settings = {"project_name": "p", "experiment_name": "e", "logger": [], "total_epochs": 99, "test_freq": every}
    settings |= {"save_freq": save, "default_local_dir": str(folder / "checkpoints"), "default_hdfs_dir": None}
    settings |= {"val_before_train": False, "resume_mode": "auto", "del_local_ckpt_after_load": False}
    rotation = checkpoints.rotation(compose("rl", ["data=math", "train.keep_checkpoints=1"]).train)
    retool = {"rotation": rotation, "stop_after_worse": limit}
    manager = surround(trainer, folder, {"trainer": settings, "retool": retool})
    trainer.actor_rollout_wg, trainer.checkpoint_callback = Engine(), MarkComplete()
    trainer.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None)
    trainer.train_dataloader = Loader()
    trainer.steps_per_epoch, trainer.total_training_steps = 99, steps
    trainer._start_profiling = trainer._stop_profiling = lambda: None
    trainer._compute_metrics = lambda batch, metrics, *_, global_steps, **__: metrics.update(
        {"reward/accuracy": (training or {}).get(global_steps, 0.0)}
    )
    trainer._init_dump_executor()
    ran = []

    def step(metrics, timing_raw):
        ran.append(trainer.global_steps)
        if trainer.global_steps == stop_at:
            stop.request(folder)
        return SimpleNamespace(keys=[], partition_id="train")

    trainer.step = step
    trainer._load_checkpoint()
    try:
        trainer.fit(manager)
    except stop.StopRequested as stopped:
        stop.honour(folder, stopped.step)
    return ran


def test_the_best_is_what_the_policy_of_the_checkpoint_can_do(tmp_path, monkeypatch):
    """Training accuracy is of the policy before the update, on the prompts that were drawn: it peaks elsewhere."""
    right = {2: 1, 4: 3, 6: 2, 8: 2}
    training = {step: 0.1 * step for step in range(1, 9)}
    one_attempt(tmp_path, monkeypatch, right, training=training, steps=8)
    found = checkpoints.best(tmp_path / "checkpoints")
    assert found == {"metric": "val/accuracy", "value": 0.75, "step": 4, "se": 0.0}
    assert checkpoints.policy_step(tmp_path / "policy_best") == 4
    assert [checkpoints.step_of(path) for path in checkpoints.complete(tmp_path / "checkpoints")] == [4, 8]
    logged = read_steps(tmp_path)
    assert {step: data["val/accuracy"] for step, data in logged.items() if "val/accuracy" in data} == {
        step: count / SAMPLES for step, count in right.items()
    }
    for step in right:
        assert logged[step]["val/seconds"] >= 0 and 0 <= logged[step]["val/share"] <= 1
        assert logged[step]["val/failed"] == 0 and logged[step]["val/made/accuracy"] == right[step] / SAMPLES


def test_a_checkpoint_that_was_not_validated_is_never_the_best(tmp_path, monkeypatch):
    """As one that a requested stop saves: its steps of another attempt may still be in the metrics files."""
    right = {2: 1, 4: 1, 6: 4, 8: 2}
    assert one_attempt(tmp_path, monkeypatch, right, steps=8, stop_at=6) == [1, 2, 3, 4, 5, 6]
    assert stop.stopped_after(tmp_path) == 6
    assert "val/accuracy" not in read_steps(tmp_path)[6], "whoever asked for a stop has minutes"
    assert checkpoints.best(tmp_path / "checkpoints")["step"] == 4
    assert one_attempt(tmp_path, monkeypatch, right, steps=8) == [7, 8]
    assert checkpoints.best(tmp_path / "checkpoints") == {"metric": "val/accuracy", "value": 0.5, "step": 8, "se": 0.0}


def test_an_early_stop_is_an_end_with_the_last_policy_and_the_best(tmp_path, monkeypatch, capsys):
    right = {2: 1, 4: 3, 6: 2, 8: 3, 10: 1, 12: 4}
    assert one_attempt(tmp_path, monkeypatch, right, limit=2) == list(range(1, 9))  # equal at 8: not better
    assert "RL ends with step 8: 2 validations in a row were not better" in capsys.readouterr().out
    assert stop.stopped_after(tmp_path) is None, "an end, not a pause"
    assert checkpoints.policy_step(checkpoints.link_policy(tmp_path)) == 8
    assert checkpoints.best(tmp_path / "checkpoints")["step"] == 8  # of equal values the later
    assert [read_steps(tmp_path)[step]["val/worse_in_a_row"] for step in (2, 4, 6, 8)] == [0, 0, 1, 2]


def test_an_early_stop_between_two_saves_makes_one_step_more(tmp_path, monkeypatch):
    right = dict.fromkeys(range(1, 13), 2)
    assert one_attempt(tmp_path, monkeypatch, right, save=6, every=1, limit=3) == [1, 2, 3, 4, 5]
    assert checkpoints.step_of(checkpoints.latest(tmp_path / "checkpoints")) == 5
    assert "val/accuracy" in read_steps(tmp_path)[5]
    assert one_attempt(tmp_path / "unsaved", monkeypatch, right, save=-1, every=1, limit=3) == [1, 2, 3, 4]


def test_an_early_stop_counts_over_attempts(tmp_path, monkeypatch):
    right = {2: 3, 4: 2, 6: 2, 8: 2, 10: 2}
    assert one_attempt(tmp_path, monkeypatch, right, limit=3, stop_at=5) == [1, 2, 3, 4, 5]
    assert one_attempt(tmp_path, monkeypatch, right, limit=3) == [6, 7, 8]


def test_without_a_limit_steps_decide(tmp_path, monkeypatch):
    assert one_attempt(tmp_path, monkeypatch, {step: 1 for step in range(2, 13, 2)})[-1] == 12


def test_validations_share_their_noise_and_training_has_none_of_it(tmp_path, monkeypatch):
    sent = []

    def one_batch(self):
        batch = tensordict_utils.get_tensordict({"index": numpy.array([3, 5], dtype=object)})
        tensordict_utils.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        self.agent_loop_manager.generate_sequences(batch)
        return {"val/accuracy": 0.5}

    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", one_batch)
    trainer = object.__new__(RetoolTrainer)
    manager = SimpleNamespace(generate_sequences=lambda batch: sent.append(batch["global_steps"]))
    trainer.agent_loop_manager, trainer.began = manager, 0.0
    trainer.config = OmegaConf.create({"retool": {"stage_dir": str(tmp_path)}})
    for trainer.global_steps in (5, 10):
        trainer._validate()
    assert sent == [0, 0] and trainer.agent_loop_manager is manager
    seeds = {request_seed(1, 0, index, sample, 0) for index in range(20) for sample in range(16)}
    trained = {request_seed(1, step, i, sample, 0) for step in (5, 10) for i in range(20) for sample in range(16)}
    assert not seeds & trained


def test_figures_that_verl_sums_up_elsewhere_are_missed(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", lambda self: {"val-core/acc": 1.0})
    trainer = object.__new__(RetoolTrainer)
    trainer.agent_loop_manager, trainer.began = None, 0.0
    trainer.config = OmegaConf.create({"retool": {"stage_dir": str(tmp_path)}})
    with pytest.raises(AssertionError, match="elsewhere"):
        trainer._validate()
