"""A step as the trainer's observer sees it, on a queue in memory that holds what verl's agent loop puts there."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transfer_queue
from memory_queue import MemoryQueue
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base

from retool_mcore.backends.verl.audited_loss import SPAN_KIND
from retool_mcore.backends.verl.observer import StepObserver
from retool_mcore.backends.verl.separate import SeparateTrainer
from retool_mcore.backends.verl.trainer import RetoolTrainer
from retool_mcore.metrics.audit import INTERPRETER, POLICY, PREDICTED, MaskAuditError
from retool_mcore.metrics.records import read_step
from retool_mcore.rollout.wire import to_wire

MASK = [1, 1, 0, 0, 1]


def nested(rows) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


def row(score: float, source: str) -> dict:
    note = {"programs": 1, "boxed": False, "fakes": [], "generate_s": 1.0, "tool_s": 0.5}
    call = {"code": "1", "malformed": False, "status": "success", "stdout": "", "stderr": "", "value": "1"}
    call |= {"duration_s": 0.5, "turn": 0, "start": 0, "truncated": False}
    logprobs = [-0.5 * bit for bit in MASK]
    spans = [("policy", 0, 2), ("observation", 2, 4), ("policy", 4, 5)]
    record = {
        "prompt_ids": [7, 8],
        "response_ids": [1, 2, 3, 4, 5],
        "logprobs": logprobs,
        "spans": [{"kind": kind, "start": start, "end": end} for kind, start, end in spans],
        "calls": [call],
        "turns": 2,
        "turn_notes": [note, note],
        "finish": "answer",
        "generate_s": 2.0,
        "tool_s": 1.0,
        "started": 0.0,
    }
    outcome = {"score": 0.0, "acc": float(score > 0), "pred": "1", "overlong": -0.25}
    reward = torch.zeros(5)
    reward[-1] = score
    return {
        "responses": torch.arange(1, 6),
        "response_mask": torch.tensor(MASK),
        "loss_mask": torch.tensor(MASK),
        "rollout_log_probs": torch.tensor(logprobs),
        "old_log_probs": torch.tensor(logprobs) - 0.125,
        "advantages": torch.tensor(MASK) * 0.5,
        "rm_scores": reward,
        "extra_fields": {"trajectory": to_wire(record), "reward_extra_info": outcome},
        "reward_model": {"ground_truth": "1"},
        "data_source": source,
        "index": 4,
    }


@pytest.fixture
def step(monkeypatch, tmp_path):
    """(observer, queue, batch) of two trajectories and one row of verl's padding, step 3."""
    rows = {"u_1_0": row(1.0, "aime"), "u_0_0": row(-1.0, "math"), "pad_0_0": row(0.0, "aime")}
    tags = [{"response_len": 5}, {"response_len": 5}, {"response_len": 1, "is_padding": True}]
    queue = MemoryQueue(rows, dict(zip(rows, tags, strict=True)))
    for name in ("kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
    recipe = SimpleNamespace(observation_weight=0.0)
    texts = SimpleNamespace(every=3, count=3)
    folders = {"stage_dir": str(tmp_path), "trajectories": str(tmp_path / "trajectories")}
    observer = StepObserver(SimpleNamespace(recipe=recipe, keep_trajectory_bytes=None, texts=texts, **folders))
    yield observer, queue, SimpleNamespace(keys=list(rows), tags=tags, partition_id="train")
    observer.close()


def test_a_sound_step(step, tmp_path):
    observer, queue, batch = step
    metrics, timing = {}, {"step": 10.0, "gen": 5.0, "update_actor": 2.0}
    observer.begin_step()
    observer.read_ahead(batch)
    observer.ahead.result()
    for key in batch.keys:
        del queue.rows[key]["extra_fields"]  # read ahead, once
    batch = observer.before_update(batch, 3, metrics, timing)
    kinds = [POLICY, POLICY, INTERPRETER, INTERPRETER, POLICY]
    assert queue.rows["u_0_0"][SPAN_KIND].tolist() == queue.rows["u_1_0"][SPAN_KIND].tolist() == kinds
    assert queue.rows["pad_0_0"][SPAN_KIND].tolist() == [INTERPRETER]
    drawn = []
    board = SimpleNamespace(
        add_histogram=lambda tag, values, step: drawn.append((tag, len(values), step)), log_dir=tmp_path / "board"
    )
    tokenizer = SimpleNamespace(decode=lambda ids, **_: " ".join(map(str, ids)))
    observer.end_step(batch, 3, metrics, timing, board, tokenizer)
    observer.close()
    assert metrics["audit/interpreter_tokens"] == 4 and metrics["mismatch/max"] == pytest.approx(0.125)
    shown = EventAccumulator(str(tmp_path / "board/text")).Reload()
    assert shown.Tags()["tensors"] == [f"trajectory/{number}/text_summary" for number in (0, 1)]
    text = shown.Tensors("trajectory/0/text_summary")[0]
    assert text.step == 3 and b"7 8" in text.tensor_proto.string_val[0]
    assert metrics["reward/accuracy"] == 0.5 and metrics["reward/aime/accuracy"] == 1.0
    assert metrics["behaviour/code_ratio"] == metrics["behaviour/math/code_ratio"] == 1.0
    assert metrics["perf/tokens_per_second"] == 1.4 and metrics["timing_s/tools"] == 1.0
    assert ("behaviour/aime/response_length", 1, 3) in drawn
    assert {"timing_share/audit", "timing_share/generation"} <= metrics.keys() and timing["audit"] > 0
    first, second = read_step(tmp_path / "trajectories/step_000003.parquet")
    assert (first["score"], second["score"]) == (-1.0, 1.0)  # rm_scores, not the outcome's
    assert (first["uid"], first["sample"], first["overlong"]) == ("u", 0, -0.25)
    assert second["response_mask"].tolist() == [bool(bit) for bit in MASK]
    assert second["old_log_probs"].tolist() == [-0.625, -0.625, -0.125, -0.125, -0.625]
    assert json.loads((tmp_path / "trace/step_000003.json").read_text())["otherData"]["trajectories"] == 2


def test_a_shifted_mask_leaves_its_trajectory_on_the_disk(step, tmp_path):
    observer, queue, batch = step
    queue.rows["u_1_0"]["response_mask"] = torch.tensor([1, 1, 0, 1, 1])
    with pytest.raises(MaskAuditError) as stopped:
        observer.before_update(batch, 3, {}, {})
    path = tmp_path / "audit/step_000003.parquet"
    assert str(stopped.value) == (
        "The mask audit stops the run before the update: an interpreter token has weight in the loss, "
        f"trajectory u_1 of step 3 (in {path}; `retool view {tmp_path.parent} --audit` shows it at #/t/3/0), "
        "response token 3."
    )
    (record,) = read_step(path)
    assert record["response_mask"].tolist() == [True, True, False, True, True] and record["sample"] == 1


def test_what_is_not_finite_is_named_with_its_trajectory_on_the_disk(step, tmp_path, capsys):
    observer, queue, batch = step
    queue.rows["u_1_0"] |= {"advantages": torch.tensor(MASK) * torch.nan, "rm_scores": torch.full((5,), torch.nan)}
    metrics = {}
    observer.before_update(batch, 3, metrics, {})
    path = tmp_path / "audit/step_000003.parquet"
    assert capsys.readouterr().out == (
        "advantages of 1 of 2 trajectories are not finite (NaN or infinite), first in trajectory u_1 of step 3 "
        f"(in {path}; `retool view {tmp_path.parent} --audit` shows it at #/t/3/0), response token 0: "
        "1 rewards of the batch are not finite, the first is nan: look at the reward.\n"
    )
    assert metrics["audit/not_finite_tokens"] == 3 and read_step(path)[0]["sample"] == 1


@pytest.mark.parametrize("step_number", [1, 2, 3])
@pytest.mark.parametrize("trainer_class", [RetoolTrainer, SeparateTrainer])
def test_bypass_has_one_objective_in_every_step(step, monkeypatch, step_number, trainer_class):
    """The pass of every second step is for the metrics: the loss reads the rollout engine's in all of them."""
    observer, queue, batch = step
    made, asked = object.__new__(trainer_class), []
    rollout = {"calculate_log_probs": True, "temperature": 1.0}
    correction = {"rollout_is": None, "rollout_rs": None}
    made.config = OmegaConf.create(
        {
            "retool": {"log_probs_every": 2},
            "algorithm": {"rollout_correction": correction},
            "actor_rollout_ref": {
                "rollout": rollout,
                "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
            },
        }
    )
    made.global_steps, made.observer, made.local_trigger_step = step_number, observer, 0
    for values in queue.rows.values():
        del values["old_log_probs"]

    def compute_log_prob(batch):
        asked.append(batch)
        for values in queue.rows.values():
            whole = torch.cat([torch.zeros(2), values["rollout_log_probs"] - 0.125])
            values |= {"log_probs": whole.roll(-1), "entropy": whole.roll(-1)}
        return batch

    made.actor_rollout_wg = SimpleNamespace(compute_log_prob=compute_log_prob, save_model_to_cpu=lambda _: None)
    monkeypatch.setattr(
        trainer_base, "response_from_nested", lambda column, mask: nested([row[1:-1] for row in column.unbind()])
    )
    batch = KVBatchMeta(partition_id="train", keys=batch.keys, tags=batch.tags, extra_info={})
    metrics, has_pass = {}, step_number % 2 == 1
    made._compute_old_log_prob(batch, metrics)
    observer.before_update(batch, step_number, metrics, {})
    assert len(asked) == has_pass
    for values in queue.rows.values():
        assert torch.equal(values["old_log_probs"], values["rollout_log_probs"])
    assert made.config.algorithm.rollout_correction.bypass_mode, "advantages take no weights of a step with a pass"
    assert ("mismatch/mean" in metrics) == ("actor/entropy" in metrics) == ("rollout_corr/kl" in metrics) == has_pass
    if has_pass:
        assert metrics["mismatch/mean"] == pytest.approx(0.125)
        assert metrics["rollout_corr/kl"] == pytest.approx(0.125, abs=1e-4)
    assert observer.batches[0].records[0]["old_log_probs"].tolist() == [-0.5, -0.5, 0.0, 0.0, -0.5]


def test_what_a_worker_refuses_is_written_too(step, tmp_path):
    observer, _, batch = step
    observer.before_update(batch, 3, {}, {})
    error = observer.after_refused_update(MaskAuditError("a gradient", "u_0", 2, "in the loss"))
    assert "in the loss: a gradient, trajectory u_0 of step 3 (in " in str(error)
    assert read_step(tmp_path / "audit/step_000003.parquet")[0]["sample"] == 0
    unknown = MaskAuditError("a gradient", "elsewhere_9", 2)
    assert observer.after_refused_update(unknown) is unknown


def test_a_recipe_that_predicts_observations_says_so_to_the_workers(step):
    observer, queue, batch = step
    observer.predicted = True
    observer.before_update(batch, 3, {}, {})
    assert np.unique(queue.rows["u_0_0"][SPAN_KIND]).tolist() == sorted({POLICY, PREDICTED})
