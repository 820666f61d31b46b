"""Validation on the evaluation set as well, with a sampling of its own, and before the first step."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.agent_loop_worker import SAMPLING, KeepingWorker
from retool_mcore.backends.verl.settings import evaluation_set
from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.backends.verl.validation import Resampled
from retool_mcore.config import compose

SETS = "train.eval_sets=[held_back,evaluation]"
REFERENCE = {"temperature": 1.0, "top_p": 0.6}


def rows(count):
    return {"raw_prompt": np.array([[{"role": "user", "content": str(n)}] for n in range(count)], dtype=object)}


def test_the_trainer_is_given_the_sampling_of_the_reference():
    found = evaluation_set(compose("rl", ["data=math", SETS]))
    assert (found["samples"], found["sampling"]) == (30, REFERENCE)
    assert [file.split("/")[-2] for file in found["files"]] == ["aime_2024_maxwell", "aime_2025"]
    assert evaluation_set(compose("rl", ["data=math"])) is None


def test_rows_of_the_set_bring_their_own_number_and_sampling():
    """As verl's workers take a row out of the batch (trainer/ppo/v1/agent_loop_tq.py)."""
    (batch,) = Resampled([rows(3)], samples=4, sampling=REFERENCE)
    packed = tensordict_utils.get_tensordict(batch)
    row = {name: getattr(column[1], "data", column[1]) for name, column in packed.items()}
    assert row["__rollout_n__"] == 4 and dict(row[SAMPLING]) == REFERENCE
    assert row["raw_prompt"] == [{"role": "user", "content": "1"}]


@pytest.mark.parametrize(("own", "top_p"), [(REFERENCE, 0.6), (None, 1.0)])
def test_a_worker_samples_a_row_as_the_row_says(own, top_p):
    worker, sent = object.__new__(KeepingWorker), []

    @asynccontextmanager
    async def turn():
        yield

    async def run(sampling_params, **row):
        sent.append(sampling_params)
        assert SAMPLING not in row
        return "output"

    async def post(output, validate, **row):
        assert output == "output" and validate and SAMPLING not in row

    worker.live = SimpleNamespace(trajectory=turn)
    worker._loop = lambda name: SimpleNamespace(run=run)
    worker._agent_loop_postprocess = post
    usual = {"temperature": 1.0, "top_p": 1.0, "logprobs": True}
    trajectory = {"step": 0, "sample_index": 0, "rollout_n": 0, "validate": True}
    row = {"index": 0, "uid": "u", "session_id": 0} | ({SAMPLING: own} if own else {})
    asyncio.run(worker._run_agent_loop(usual, trajectory, agent_name="retool", trace=False, **row))
    assert sent == [usual | {"top_p": top_p}] and usual["top_p"] == 1.0


def scripted(trainer, calls):
    """In the place of verl's _validate: two problems of the set that the loader holds, each sample with its answer."""

    def validate(self):
        calls.append((self.global_steps, self.val_dataloader, self.validated))
        n, acc = (
            (2, [1.0, 0.0, 0.0, 0.0]) if self.val_dataloader == "held back" else (3, [1.0, 1.0, 0.0, 0.0, 0.0, 1.0])
        )
        uids = [uid for uid in ("a", "b") for _ in range(n)]
        return self._val_metrics_update(
            data_sources=["made"] * len(uids),
            sample_uids=uids,
            reward_extra_infos_dict={"acc": acc, "pred": ["1", "1", "2", "3", "3", "1"][: len(uids)]},
            sample_turns=[],
            expected_acc_counts={("made", uid): n for uid in ("a", "b")},
        )

    return validate


def test_both_sets_are_measured_and_the_held_back_one_alone_chooses(tmp_path, monkeypatch):
    trainer, calls = object.__new__(RetoolTrainer), []
    monkeypatch.setattr(trainer_base.PPOTrainer, "_validate", scripted(trainer, calls))
    trainer.config = OmegaConf.create({"retool": {"stage_dir": str(tmp_path), "stop_after_worse": None}})
    trainer.agent_loop_manager, trainer.began, trainer.global_steps = None, 0.0, 5
    trainer.val_dataloader, trainer.evaluation = "held back", "evaluation"
    found = trainer._validate()
    assert calls == [(5, "held back", ""), (5, "evaluation", "evaluation")]
    assert trainer.val_dataloader == "held back" and trainer.validated == ""
    assert found["val/accuracy"] == 0.25 and found["val/worse_in_a_row"] == 0
    assert found["val/evaluation/accuracy"] == pytest.approx((2 / 3 + 1 / 3) / 2)
    assert found["val/evaluation/best@3"] == 1.0 and found["val/evaluation/maj@3"] == 0.5
    assert found["val/evaluation/made/accuracy"] == found["val/evaluation/accuracy"]
    assert found["val/evaluation/accuracy_se"] > 0 and found["val/evaluation/failed"] == 0
    assert len((tmp_path / "validation.jsonl").read_text().splitlines()) == 1, "the evaluation set chooses nothing"


@pytest.mark.parametrize(("step", "before"), [(0, True), (40, False)])
def test_a_resumed_run_is_not_validated_before_its_first_step_again(monkeypatch, step, before):
    trainer = object.__new__(RetoolTrainer)
    trainer.config = OmegaConf.create({"trainer": {"val_before_train": True}})
    trainer.global_steps, seen = step, []
    above = RetoolTrainer.__mro__[RetoolTrainer.__mro__.index(RetoolTrainer) + 2]
    monkeypatch.setattr(above, "fit", lambda self, manager: seen.append(self.config.trainer.val_before_train))
    trainer.fit(None)
    assert seen == [before]
