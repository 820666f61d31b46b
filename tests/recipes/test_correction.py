"""verl's presets by name, what is refused of them, and the mask audit beside verl's own rejection."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transfer_queue
from memory_queue import MemoryQueue
from omegaconf import OmegaConf
from verl.protocol import DataProto
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import (
    SUPPORTED_ROLLOUT_RS_OPTIONS,
    compute_rollout_correction_and_add_to_batch,
)

from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError
from retool_mcore.metrics.audit import Columns, audit
from retool_mcore.recipes.correction import REJECTIONS, check_correction, count_rejected

PRESETS = {path.stem: OmegaConf.load(path) for path in sorted((CONFIG_DIR / "correction").glob("*.yaml"))}
OURS = {"bypass": "bypass_ppo_clip"}  # with the recipe's own loss
RECIPE = {"loss_aggregation": "token-mean", "observation_weight": 0.0}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_verls_own_of_that_name(name):
    found = dict(PRESETS[name])
    assert found.pop("name") == name
    theirs = asdict(getattr(RolloutCorrectionConfig, OURS.get(name, name))())
    assert (found.pop("log_probs_every") > 1) == theirs["bypass_mode"]
    assert found == {key: theirs[key] for key in found}
    check_correction(PRESETS[name], RECIPE, log_probs=True)


def test_all_of_verls_presets_that_keep_the_trainers_log_probabilities_are_offered():
    names = {name for name in vars(RolloutCorrectionConfig) if name.startswith("decoupled_") or name == "disabled"}
    assert names == PRESETS.keys() - OURS.keys() and set(REJECTIONS) == SUPPORTED_ROLLOUT_RS_OPTIONS


def test_the_default_is_todays_and_another_is_named_on_the_command_line():
    default = compose("rl", []).verl.algorithm.rollout_correction
    assert (default.rollout_is, default.rollout_is_threshold, default.rollout_rs) == ("token", 2.0, None)
    other = compose("rl", ["correction=decoupled_seq_is_rs"]).verl.algorithm.rollout_correction
    assert (other.rollout_is, other.rollout_rs, other.rollout_rs_threshold) == ("sequence", "seq_sum_k1", "0.5_2.0")
    own = compose("rl", ["correction=decoupled_k3_rs", "correction.rollout_rs_threshold=0.02"])
    assert own.verl.algorithm.rollout_correction.rollout_rs_threshold == 0.02
    own = compose("rl", ["correction.rollout_is_threshold=0.5_5.0"])
    assert own.verl.algorithm.rollout_correction.rollout_is_threshold == "0.5_5.0"
    with pytest.raises(UserError, match="correction has no choice 'mis'; choose one of: bypass, decoupled_geo_rs"):
        compose("rl", ["correction=mis"])


@pytest.mark.parametrize(
    ("name", "change", "recipe", "log_probs", "said"),
    [
        ("decoupled_k3_rs", {}, {}, False, "correction=decoupled_k3_rs needs the rollout engine's log-probabilities"),
        ("decoupled_token_is", {}, {}, False, "correction=disabled"),
        ("decoupled_token_is", {"rollout_is_threshold": "high"}, {}, True, "rollout_is_threshold=high: expected 2.0"),
        ("bypass", {}, {}, False, "correction=bypass needs the rollout engine's log-probabilities"),
        ("decoupled_token_is", {"log_probs_every": 2}, {}, True, "set correction.log_probs_every=1"),
        ("decoupled_geo_rs", {"rollout_rs": "geometric"}, {}, True, "'geometric' is not known; choose from token_k1"),
        ("decoupled_geo_rs", {"rollout_rs_threshold": "2_0.5"}, {}, True, "2_0.5 does not fit seq_mean_k1"),
        ("decoupled_k3_rs", {"rollout_rs_threshold": "0.1_0.2"}, {}, True, "one bound for k2 and k3"),
        ("decoupled_geo_rs", {}, {"loss_aggregation": "seq-mean-token-mean"}, True, "divides by the rejected ones too"),
        ("decoupled_geo_rs", {}, {"observation_weight": 0.1}, True, "would take for observations"),
    ],
)
def test_what_does_not_fit_is_refused_with_one_sentence(name, change, recipe, log_probs, said):
    with pytest.raises(UserError, match=said):
        check_correction(OmegaConf.merge(PRESETS[name], change), RECIPE | recipe, log_probs=log_probs)


def test_disabled_needs_nothing():
    check_correction(PRESETS["disabled"], RECIPE | {"observation_weight": 1.0}, log_probs=False)


MASK = [1, 1, 0, 0, 1]
SPANS = [{"kind": "policy", "start": 0, "end": 2}, {"kind": "observation", "start": 2, "end": 4}]
SPANS += [{"kind": "policy", "start": 4, "end": 5}]
DRIFT = {
    "u_0_0": 0.0,
    "u_1_0": -0.4,
    "u_2_0": 0.4,
}  # of every token's log-probability, the trainer's minus the engine's


@pytest.fixture
def queue(monkeypatch):
    queue = MemoryQueue()
    for name in ("kv_batch_get", "kv_batch_put"):
        monkeypatch.setattr(transfer_queue, name, getattr(queue, name))
    for key, drift in DRIFT.items():
        queue.rows[key] = {
            "responses": torch.arange(5),
            "response_mask": torch.tensor(MASK),
            "loss_mask": torch.tensor(MASK),
            "rollout_log_probs": torch.full((5,), -1.0) * torch.tensor(MASK),
            "old_log_probs": (torch.full((5,), -1.0) + drift) * torch.tensor(MASK),
        }
    return queue


def corrected(queue, name: str):
    """verl's own correction of the queue's batch, written back as its trainer does; the batch's meta."""
    columns = ("response_mask", "old_log_probs", "rollout_log_probs")
    data = {column: torch.stack([queue.rows[key][column] for key in DRIFT]) for column in columns}
    data, metrics = compute_rollout_correction_and_add_to_batch(DataProto.from_dict(tensors=data), PRESETS[name])
    for number, key in enumerate(DRIFT):
        queue.rows[key]["response_mask"] = data.batch["response_mask"][number]
    return SimpleNamespace(keys=list(DRIFT), tags=[{}] * len(DRIFT), partition_id="train"), metrics


def audited(queue):
    rows = [queue.rows[key] for key in DRIFT]
    names = ("response_mask", "loss_mask", "rollout_log_probs", "old_log_probs")
    values = {name: np.concatenate([row[name].numpy() for row in rows]) for name in names}
    columns = Columns(
        offsets=np.arange(0, 16, 5),
        response_ids=np.concatenate([row["responses"].numpy() for row in rows]),
        advantages=np.ones(15) * np.tile(MASK, 3),
        **values,
    )
    records = [
        {"response_ids": np.arange(5), "logprobs": row["rollout_log_probs"].numpy(), "spans": SPANS} for row in rows
    ]
    return audit(columns, records)


@pytest.mark.parametrize("name", ["decoupled_seq_is_rs", "decoupled_geo_rs", "decoupled_k3_rs"])
def test_rejection_bounds_both_sides_and_passes_the_audit(queue, name):
    batch, metrics = corrected(queue, name)
    assert [int(queue.rows[key]["response_mask"].sum()) for key in DRIFT] == [3, 0, 0]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(2 / 3)
    assert sum(int(queue.rows[key]["loss_mask"].sum()) for key in DRIFT) == 9  # what verl would divide by
    count_rejected(batch)
    assert [queue.rows[key]["loss_mask"].tolist() for key in DRIFT] == [MASK, [0] * 5, [0] * 5]
    found, fault = audited(queue)
    assert fault is None and found["audit/masked_policy_tokens"] == 6


def test_truncation_bounds_only_one_side(queue):
    before = [queue.rows[key]["loss_mask"] for key in DRIFT]
    batch, metrics = corrected(queue, "decoupled_token_is")
    count_rejected(batch)
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(np.exp(-0.4))
    assert all(queue.rows[key]["loss_mask"] is mask for key, mask in zip(DRIFT, before, strict=True))


def test_an_observation_with_weight_is_caught_beside_a_rejection(queue):
    batch, _ = corrected(queue, "decoupled_geo_rs")
    count_rejected(batch)
    queue.rows["u_0_0"]["response_mask"] = torch.tensor([1, 1, 0, 1, 1])
    _, fault = audited(queue)
    assert (fault.what, fault.row, fault.token) == ("an interpreter token has weight in the loss", 0, 3)
