"""Each alarm injected once into verl's own loop, with its own data loader and a stand-in for the engine."""

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from trainer_double import surround
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from retool_mcore.backends.verl import take_over, trainer
from retool_mcore.backends.verl.trainer import MarkComplete, RetoolTrainer
from retool_mcore.config import compose
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.state import alarms, checkpoints
from retool_mcore.state.alarms import Ended

STEPS, BATCH, SAVE_EVERY = 8, 4, 2
ROW = ("raw_prompt", "data_source", "index")
POISON = 21  # a prompt whose gradient is NaN: the sixth step's, in the order of the data


class Engine:
    """verl's worker group; its checkpoints hold no weights."""

    def save_checkpoint(self, local_path, *_, **__):
        (Path(local_path) / "model/huggingface").mkdir(parents=True)

    def load_checkpoint(self, *_, **__):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs one attempt: `figures(prompts, step)` are the metrics of a step; returns (how it ended, trained prompts)."""
    defaults = compose("rl", []).alarms
    monkeypatch.setattr(trainer_base.SkipManager, "init", lambda config: None)
    monkeypatch.setattr(trainer_base.tq, "kv_clear", lambda **_: None)
    monkeypatch.setattr(PPOTrainerSync, "_compute_metrics", lambda *_, **__: None)
    (tmp_path / "metrics").mkdir()
    (tmp_path / "checkpoints").mkdir()

    def attempt(figures, leave_out=True, **changes):
        number = len(list((tmp_path / "metrics").iterdir())) + 1
        file = tmp_path / f"metrics/attempt_{number:03d}.jsonl"
        file.touch()
        checkpoints.repair(tmp_path / "checkpoints")
        made, trained = object.__new__(RetoolTrainer), {}

        def log(data, step):
            with file.open("a") as lines:
                lines.write(json.dumps({"step": step, "data": data}) + "\n")

        logger = SimpleNamespace(log=log, logger={})
        monkeypatch.setattr(trainer_base, "Tracking", lambda **_: logger)
        settings = {"project_name": "p", "experiment_name": "e", "logger": [], "total_epochs": 99, "test_freq": -1}
        settings |= {"save_freq": SAVE_EVERY, "default_local_dir": str(tmp_path / "checkpoints"), "device": "cpu"}
        settings |= {"val_before_train": False, "resume_mode": "auto", "del_local_ckpt_after_load": False}
        settings |= {"default_hdfs_dir": None, "v1": {"sampler": {"max_off_policy_threshold": 1}}}
        retool = {
            "rotation": {"keep_last": 9, "keep_best": None, "best_is": "highest"},
            "alarms": OmegaConf.merge(defaults, changes),
        }
        actor = {"actor": {"ppo_mini_batch_size": BATCH}}
        given = {"trainer": settings, "data": {"train_batch_size": BATCH}, "retool": retool, "actor_rollout_ref": actor}
        manager = surround(made, tmp_path, given)
        made.actor_rollout_wg = Engine()
        made.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None)
        made.checkpoint_callback, made.tokenizer = MarkComplete(), None
        made.observer.begin_step, made.observer.end_step, made.observer.started = (
            lambda: None,
            lambda *_: None,
            time.time(),
        )
        made.train_dataloader = StatefulDataLoader(
            range(200), batch_size=1, collate_fn=lambda items: dict.fromkeys(ROW, np.array(items, dtype=object))
        )
        made.train_dataloader_it = None
        made.steps_per_epoch, made.total_training_steps = 50, STEPS
        made._start_profiling = made._stop_profiling = lambda: None
        made._init_dump_executor()

        def step_once(metrics, timing_raw, size):
            prompts = [int(made._fetch_one_gen_batch()["raw_prompt"][0]) for _ in range(size)]
            trained[made.global_steps] = prompts
            metrics |= figures(prompts, made.global_steps)
            return SimpleNamespace(keys=[], tags=[], partition_id="train")

        made._step_once, made.prepare_step = step_once, dict
        monkeypatch.setattr(take_over, "PolicyIdentity", lambda *_: SimpleNamespace(link="link", advance=len))
        if not leave_out:
            monkeypatch.setattr(alarms, "left_out", lambda *_: 0)
        made._load_checkpoint()
        try:
            made.fit(manager)
        except Ended as ended:
            alarms.honour(tmp_path, ended)
            return ended.answer, trained
        return None, trained

    attempt.folder = tmp_path
    attempt.steps = lambda: [json.loads(line)["step"] for line in (tmp_path / "alarms.jsonl").read_text().splitlines()]
    return attempt


def poisoned(prompts, step):
    return {"actor/broken_updates": float(POISON in prompts)}


def jumped(step: int, at: int) -> dict:
    """A reward that jumps while the held-back accuracy does not; two steps after that the window's halves differ."""
    return {"critic/score/mean": 0.1 * (1 + 5 * (step >= at)) + 0.001 * (step % 2), "val/accuracy": 0.3}


def last(folder: Path) -> int:
    return checkpoints.step_of(checkpoints.latest(folder / "checkpoints"))


def test_a_resume_does_not_meet_the_same_nan_for_ever(run):
    ended, trained = run(poisoned, nan={"answer": "back"})
    assert (ended, max(trained), last(run.folder)) == ("back", 6, 4)
    ended, trained = run(poisoned, leave_out=False, nan={"answer": "back"})
    assert ended == "back" and trained[6] == [20, 21, 22, 23]  # what leaving no prompt out would do: the same again


def test_going_back_leaves_out_the_prompts_since_the_checkpoint(run):
    run(poisoned, nan={"answer": "back"})
    assert alarms.backs(run.folder)[0] | {"said": ""} == {"step": 6, "from": 4, "skip": 2 * BATCH, "said": ""}
    ended, trained = run(poisoned, nan={"answer": "back"})
    assert ended is None and list(trained) == [5, 6, 7, 8] and trained[5] == [24, 25, 26, 27]
    assert alarms.request_seed(run.folder, 1) != 1
    # From a checkpoint behind the place nothing is left out any more.
    assert last(run.folder) == 8 and alarms.left_out(run.folder, 8) == 0


def test_it_goes_back_a_bounded_number_of_times_and_then_stops_with_a_sentence(run, capsys):
    for number in range(3):
        assert run(lambda *_: {"actor/broken_updates": 1.0}, nan={"answer": "back"})[0] == "back", number
    ended, trained = run(lambda *_: {"actor/broken_updates": 1.0}, nan={"answer": "back"})
    assert ended == "stop" and trained == {1: [12, 13, 14, 15]}
    assert "the run went back 3 times already (alarms.backs), so it stops" in str(alarms.ended(run.folder))
    assert "so it stops" in capsys.readouterr().out and checkpoints.latest(run.folder / "checkpoints") is None


def test_skipping_goes_on_for_some_steps_and_then_goes_back(run):
    ended, _ = run(lambda prompts, step: {"actor/broken_updates": float(step > 2), "actor/skipped_updates": 1.0})
    assert ended == "back" and run.steps() == [3, 4, 5]
    assert last(run.folder) == 2  # step 4, in the row, is nothing to go back to
    # and leaves nothing behind, not even the link of the policy's chain
    assert [path.name for path in (run.folder / "checkpoints").glob("global_step_*")] == ["global_step_2"]
    assert (run.folder / "checkpoints/global_step_2/policy_identity").read_text() == "link"


def test_a_row_that_ends_is_nothing(run):
    ended, trained = run(lambda prompts, step: {"actor/broken_updates": float(step in (3, 4, 6, 7))})
    assert ended is None and len(trained) == STEPS and last(run.folder) == 8


def test_stop_leaves_the_last_good_checkpoint_the_last(run):
    figures = {"mismatch/kl": 0.5}
    ended, trained = run(
        lambda prompts, step: figures if step == 4 else {}, mismatch={"answer": "stop", "then": "stop"}
    )
    assert (ended, max(trained), last(run.folder)) == ("stop", 4, 2)
    assert not alarms.backs(run.folder)


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("gradient_norm", lambda step: {"actor/norm_ratio_max": 50.0 * (step == 5)}),
        ("entropy", lambda step: {"actor/entropy": 0.5 if step < 5 else 0.01}),
        ("mismatch", lambda step: {"mismatch/kl": 0.1 * (step >= 5)}),
        ("reward", lambda step: jumped(step, at=4)),
    ],
)
def test_a_told_alarm_changes_nothing_else(run, name, figure):
    ended, trained = run(lambda prompts, step: figure(step))
    assert ended is None and len(trained) == STEPS and last(run.folder) == 8
    assert min(run.steps()) == 5 and {json.loads(x)["alarm"] for x in (run.folder / "alarms.jsonl").open()} == {name}


def test_the_reward_alarm_stops_after_its_step(run):
    stop = {"answer": "stop", "then": "stop"}
    ended, trained = run(lambda prompts, step: jumped(step, at=4), reward=stop)
    assert ended == "stop" and max(trained) == min(run.steps()) == 5


def test_an_update_is_left_out_by_what_is_known_before_it(run, monkeypatch):
    made, updated = object.__new__(RetoolTrainer), []
    made.observer = SimpleNamespace(before_update=lambda batch, *_: batch)
    made.global_steps, made.timing_raw = 3, {}
    monkeypatch.setattr(PPOTrainerSync, "_update_actor", lambda self, batch, metrics: updated.append(batch) or batch)
    for answer in ("skip", "tell"):
        settings = OmegaConf.merge(compose("rl", []).alarms, {"mismatch": {"answer": answer}})
        made.alarms = alarms.Alarms(settings, run.folder)
        assert made._update_actor(answer, metrics := {"mismatch/kl": 0.5}) == answer
        assert ("actor/skipped_updates" in metrics) is (answer == "skip")
    assert updated == ["tell"]


def test_prompts_restored_from_an_async_checkpoint_are_left_out_too(run, monkeypatch):
    alarms.go_back(run.folder, 6, 0, 8, "nan")
    made, cleared = object.__new__(RetoolTrainer), []
    settings = {"resume_mode": "disable", "default_local_dir": str(run.folder)}
    made.config = OmegaConf.create({"trainer": settings, "retool": {"stage_dir": str(run.folder)}})
    made.curriculum = Curriculum()
    made.trainer_mode, made._restored_tq_prompt_count = "separate_async", 5
    made.train_dataloader_it = iter([{"raw_prompt": torch.tensor([n])} for n in range(20)])
    monkeypatch.setattr(trainer.transfer_queue, "kv_list", lambda partition: {partition: {"a": {}, "b": {}}})
    monkeypatch.setattr(trainer.transfer_queue, "kv_clear", lambda **named: cleared.append(named))
    made._load_checkpoint()
    assert cleared == [{"keys": ["a", "b"], "partition_id": "train"}] and made._restored_tq_prompt_count == 0
    assert next(made.train_dataloader_it)["raw_prompt"].item() == 8 and made.fetched == 0
