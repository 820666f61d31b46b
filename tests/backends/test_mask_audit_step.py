"""A step as the trainer's observer sees it, on a queue in memory that holds what verl's agent loop puts there."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transfer_queue
from memory_queue import MemoryQueue
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from retool_mcore.backends.verl.audited_loss import INTERPRETER, POLICY, PREDICTED, SPAN_KIND
from retool_mcore.backends.verl.observer import StepObserver
from retool_mcore.metrics.audit import MaskAuditError
from retool_mcore.metrics.records import read_step
from retool_mcore.rollout.wire import to_wire

MASK = [1, 1, 0, 0, 1]


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
