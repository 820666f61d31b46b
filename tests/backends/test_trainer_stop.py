"""Stopping at a step: the cold start in verl's own training loop, RL in ours, with a stand-in for the engine."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from played_loop import Engines, settings
from played_loop import attempt as attempt_at_rl
from verl.trainer import sft_trainer
from verl.utils import tensordict_utils

from retool_mcore.backends.megatron import engine
from retool_mcore.backends.verl.sft_trainer import ColdStart
from retool_mcore.state import checkpoints, schedule, stop

STEPS, SAVE_EVERY = 8, 4  # an epoch has three steps
ALL_STEPS = list(range(1, STEPS + 1))
HOUR = 3600.0
ROTATION = {"keep_last": 2, "keep_best": None, "best_is": "highest"}
NAMES = {"project_name": "p", "experiment_name": "e", "logger": []}


class Journal:
    """What the trainers of one run trained on and logged, over all attempts."""

    def __init__(self) -> None:
        self.trained: list[list[int]] = []
        self.logged: list[int] = []
        self.stop_in: int | None = None  # the step during which STOP appears
        self.save_minutes: float | None = None
        self.stage_dir = Path()
        self.now = 0.0  # seconds; what the schedule reads where a test lets it
        self.step_s = 0.0
        self.flush = None  # in the place of the wait for the trajectories

    def __eq__(self, other) -> bool:
        return (self.trained, self.logged) == (other.trained, other.logged)

    def last_saved(self) -> int:
        return checkpoints.step_of(checkpoints.latest(self.stage_dir / "checkpoints"))

    def train(self, batch: list[int]) -> None:
        self.trained.append(batch)
        self.now += self.step_s
        if len(self.trained) == self.stop_in:
            (self.stage_dir / "STOP").touch()

    def tracking(self, **_):
        return SimpleNamespace(log=lambda data, step: self.logged.append(step))


class Engine:
    """One rank of the cold start; its checkpoints hold no weights."""

    def is_mp_src_rank_with_outputs(self):
        return True

    def get_data_parallel_rank(self):
        return 0

    def get_data_parallel_size(self):
        return 1

    def get_data_parallel_group(self):
        return None

    def save_checkpoint(self, local_path, *_, **__):
        (Path(local_path) / "model/huggingface").mkdir(parents=True)

    def load_checkpoint(self, *_, **__):
        pass


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield
        torch.distributed.destroy_process_group()


class ColdStarted(ColdStart):
    """The trainer of the cold start, whose worker writes what it trains on into the journal."""

    def __init__(self, config, journal: Journal):
        self.journal = journal
        super().__init__(config)

    def _build_config(self):
        self.model_config = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0))
        self.optimizer_config = SimpleNamespace()
        self.start_profile_step = self.end_profile_step = -1

    def _build_dataset(self):
        self.train_dataset, self.val_dataset = [{"input_ids": torch.tensor([row])} for row in range(12)], None

    def _build_engine(self):
        def train_batch(data):
            self.journal.train(data["input_ids"].values().tolist())
            return tensordict_utils.get_tensordict({}, {"metrics": {"loss": 1.0}})

        self.engine = Engine()
        self.step_with(SimpleNamespace(train_batch=train_batch, step_profile=lambda: None, reset=lambda: None))


def cold_start(folder: Path, journal: Journal, patch) -> None:
    """One attempt at SFT, as train/sft.py's main does it."""
    for name in ("aggressive_empty_cache", "log_gpu_memory_usage"):
        patch.setattr(sft_trainer, name, lambda *_, **__: None)
    patch.setattr(sft_trainer, "Tracking", journal.tracking)
    checkpoints.repair(folder / "checkpoints")
    config = {
        "trainer": NAMES
        | {"total_training_steps": STEPS, "total_epochs": 1, "save_freq": SAVE_EVERY, "test_freq": -1, "seed": 1}
        | {"default_local_dir": str(folder / "checkpoints"), "max_ckpt_to_keep": 2, "device": "cpu"}
        | {"resume_mode": "auto", "resume_from_path": None},
        "data": {
            "use_dynamic_bsz": True,
            "pad_mode": "no_padding",
            "max_token_len_per_gpu": 8,
            "micro_batch_size_per_gpu": 1,
            "train_batch_size": 4,
            "num_workers": 0,
        },
        "model": {"use_remove_padding": True},
        "retool": {"save_minutes": journal.save_minutes, "rotation": ROTATION},
    }
    ColdStarted(OmegaConf.create(config), journal).fit()


class Trained(Engines):
    """The loop's engines: the prompts of each update go into the journal."""

    def __init__(self, journal: Journal):
        super().__init__()
        self.journal = journal

    def update(self, batch):
        self.journal.train(sorted({row["number"] for row in batch.rows}))
        return {"actor/grad_norm": 0.5}


def reinforce(folder: Path, journal: Journal, patch) -> None:
    """One attempt at RL."""
    cfg = settings(batch=4, mini_batch=4, steps=STEPS, save_every=SAVE_EVERY)
    log = journal.tracking()
    log.logger = {}
    attempt_at_rl(
        folder, patch, cfg, Trained(journal), rows=12, log=log, flush=journal.flush,
        rotation=ROTATION, save_minutes=journal.save_minutes,
    )  # fmt: skip


@pytest.fixture(params=[cold_start, reinforce], ids=lambda stage: stage.__name__)
def attempt(request, tmp_path, monkeypatch):
    """Runs one attempt of a stage in tmp_path with a journal; returns the step that it stopped at, None at the end."""

    def run(journal: Journal, name: str = "stage") -> int | None:
        journal.stage_dir = tmp_path / name
        (journal.stage_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        try:
            request.param(journal.stage_dir, journal, monkeypatch)
        except stop.StopRequested as stopped:
            stop.honour(journal.stage_dir, stopped.step)
            return stopped.step
        return None

    return run


@pytest.fixture
def undisturbed(attempt) -> Journal:
    journal = Journal()
    assert attempt(journal, "undisturbed") is None
    assert journal.logged == ALL_STEPS
    return journal


# 3 and 6 end an epoch, 4 is a step that the schedule saves too.
@pytest.mark.parametrize("step", range(1, STEPS))
def test_no_step_is_lost_or_doubled(attempt, undisturbed, step):
    journal = Journal()
    journal.stop_in = step
    assert attempt(journal) == step
    assert len(journal.trained) == step and journal.logged == ALL_STEPS[:step]
    assert journal.last_saved() == step
    assert not (journal.stage_dir / "STOP").exists() and stop.stopped_after(journal.stage_dir) == step
    assert attempt(journal) is None
    assert journal == undisturbed


def test_a_request_in_the_last_step_changes_nothing(attempt):
    journal = Journal()
    journal.stop_in = STEPS
    assert attempt(journal) is None
    assert len(journal.trained) == STEPS and stop.stopped_after(journal.stage_dir) is None


@pytest.mark.parametrize(
    ("save_minutes", "expected"),
    [(None, [4, 8]), (60, [2, 4, 6, 8])],  # 4 and 8 by the schedule; an hour is two steps
)
def test_a_step_is_saved_when_the_clock_asks_for_it(attempt, undisturbed, monkeypatch, save_minutes, expected):
    saved, mark = [], checkpoints.mark_complete

    def noting(path):
        saved.append(checkpoints.step_of(path))
        mark(path)

    monkeypatch.setattr(checkpoints, "mark_complete", noting)
    journal = Journal()
    journal.save_minutes, journal.step_s = save_minutes, HOUR / 2
    monkeypatch.setattr(schedule.time, "time", lambda: journal.now)
    assert attempt(journal) is None
    assert saved == expected
    assert journal == undisturbed


def test_it_stops_where_another_step_does_not_fit_into_the_jobs_time(attempt, undisturbed, monkeypatch, tmp_path):
    journal = Journal()
    journal.step_s = HOUR
    monkeypatch.setattr(schedule.time, "time", lambda: journal.now)
    # After step 3 two hours are left, and one takes up to 1.25, with a save of up to 1.5.
    monkeypatch.setenv(stop.JOB_END, str(tmp_path / "end"))
    stop.write_job_end(tmp_path / "end", 5 * HOUR)
    assert attempt(journal) == 3
    assert journal.last_saved() == 3
    stop.write_job_end(tmp_path / "end", journal.now + 100 * HOUR)
    assert attempt(journal) is None
    assert journal == undisturbed


def test_a_checkpoint_of_rl_counts_only_once_its_step_is_in_the_record(tmp_path, monkeypatch):
    """A run that was killed in between would go on behind a step that nobody knows the figures of."""
    journal, early = Journal(), []
    journal.stage_dir = tmp_path

    def log(data, step):
        time.sleep(0.2)  # the push of the weights
        journal.logged.append(step)
        last = checkpoints.latest(tmp_path / "checkpoints")
        early.append(last is not None and checkpoints.step_of(last) >= step)

    monkeypatch.setattr(journal, "tracking", lambda **_: SimpleNamespace(log=log))
    (tmp_path / "checkpoints").mkdir()
    reinforce(tmp_path, journal, monkeypatch)
    assert journal.logged == ALL_STEPS and not any(early)
    assert journal.last_saved() == STEPS


def test_a_checkpoint_of_rl_counts_only_once_its_trajectories_are_on_the_disk(tmp_path, monkeypatch):
    """Which the next step does not wait for; what cannot be declared whole is told at the step after."""
    journal, early = Journal(), []
    journal.stage_dir = tmp_path
    (tmp_path / "checkpoints").mkdir()

    def flush():
        time.sleep(0.2)
        early.append(checkpoints.unfinished(tmp_path / "checkpoints") is None)

    journal.flush = flush
    reinforce(tmp_path, journal, monkeypatch)
    assert early == [False] * (STEPS // SAVE_EVERY) and journal.last_saved() == STEPS

    def full(path):
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoints, "mark_complete", full)
    (tmp_path / "full/checkpoints").mkdir(parents=True)
    with pytest.raises(OSError, match="No space left"):
        reinforce(tmp_path / "full", journal, monkeypatch)
    assert checkpoints.latest(tmp_path / "full/checkpoints") is None


@pytest.mark.parametrize("kind", [engine.Engine, engine.CriticEngine])
def test_what_verl_wrote_is_on_the_disk_when_a_save_returns(tmp_path, monkeypatch, kind):
    """The rank that writes the Hugging Face weights syncs them: the trainer may be on another node."""
    folder, synced, sync = tmp_path / "global_step_4", set(), os.fsync

    def save(self, local_path, *_, **__):
        Path(local_path).mkdir()
        (Path(local_path) / "model.safetensors").write_bytes(b"w")

    monkeypatch.setattr(os, "fsync", lambda file: (synced.add(Path(os.readlink(f"/proc/self/fd/{file}"))), sync(file)))
    monkeypatch.setattr(engine.transformer_impl.MegatronEngine, "save_checkpoint", save)
    object.__new__(kind).save_checkpoint(str(folder), None, 4, max_ckpt_to_keep=1)
    assert {folder, folder / "model.safetensors"} <= synced


def test_a_request_is_forgotten_when_it_is_cleared(tmp_path):
    (tmp_path / "STOP").touch()
    assert stop.requested(tmp_path) and stop.stopped_after(tmp_path) is None
    stop.honour(tmp_path, 7)
    assert not stop.requested(tmp_path) and stop.stopped_after(tmp_path) == 7
    assert stop.stopped_for(tmp_path) == stop.REQUEST
    stop.clear(tmp_path)
    assert stop.stopped_after(tmp_path) is None
    stop.request(tmp_path)
    stop.request(tmp_path, stop.REQUEST)
    stop.request(tmp_path)  # the time limit comes near, too: the user's word stays
    stop.withdraw(tmp_path)
    stop.honour(tmp_path, 8)
    assert stop.stopped_after(tmp_path) == 8 and stop.stopped_for(tmp_path) == stop.REQUEST
    stop.honour(tmp_path, 9)  # by the trainer's own clock
    assert stop.stopped_for(tmp_path) == stop.TIME_LIMIT
