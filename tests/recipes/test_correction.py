"""verl's presets by name, what is refused of them, and the mask audit of a batch with rejections."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.rollout_corr_helper import SUPPORTED_ROLLOUT_RS_OPTIONS

from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.errors import UserError
from retool_mcore.metrics.audit import audit
from retool_mcore.recipes.correction import REJECTIONS, check_correction
from retool_mcore.rollout.samples import Sample
from retool_mcore.train import rl
from retool_mcore.train.batch import Batch

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
    ("name", "change", "recipe", "log_probs", "sentence"),
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
def test_what_does_not_fit_is_refused_with_one_sentence(name, change, recipe, log_probs, sentence):
    with pytest.raises(UserError, match=sentence):
        check_correction(OmegaConf.merge(PRESETS[name], change), RECIPE | recipe, log_probs=log_probs)


def test_disabled_needs_nothing():
    check_correction(PRESETS["disabled"], RECIPE | {"observation_weight": 1.0}, log_probs=False)


MASK = [1, 1, 0, 0, 1]
SPANS = [{"kind": "policy", "start": 0, "end": 2}, {"kind": "observation", "start": 2, "end": 4}]
SPANS += [{"kind": "policy", "start": 4, "end": 5}]
DRIFT = (0.0, -0.4, 0.4)  # by sample, of every token's log-probability: the trainer's minus the engine's


def corrected(name: str):
    """Three samples after the correction of that name: (the batch, its metrics)."""
    row = {"data_source": "made", "index": 1, "reward_model": {"ground_truth": "4"}}
    outcome = {"score": 1.0, "acc": 1.0, "pred": "4", "drop": "", "overlong": 0.0}
    engine = -1.0 * np.array(MASK)
    batch = Batch.of(
        [
            (
                Sample(
                    "u", number, [1], np.arange(5), MASK, engine, {"spans": SPANS}, "answer", 2, (0, 0), outcome=outcome
                ),
                row,
            )
            for number in range(3)
        ]
    )
    drift = batch.of_tokens(torch.tensor(DRIFT)) * batch["response_mask"]
    batch["old_log_probs"] = batch["rollout_log_probs"] + drift
    return batch, rl.correct_mismatch(batch, OmegaConf.to_container(PRESETS[name]))


def audited(batch):
    batch["advantages"] = batch.of_tokens(torch.ones(3)) * torch.tensor(MASK * 3)
    columns = batch.for_audit()
    return audit(columns, batch.records(1, columns))


@pytest.mark.parametrize("name", ["decoupled_seq_is_rs", "decoupled_geo_rs", "decoupled_k3_rs"])
def test_rejection_bounds_both_sides_and_passes_the_audit(name):
    batch, metrics = corrected(name)
    assert batch["response_mask"].split(5)[0].tolist() == MASK
    assert not batch["response_mask"][5:].any(), "a rejected sample is not in the loss's denominator either"
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == pytest.approx(2 / 3)
    found, fault = audited(batch)
    assert fault is None and found["audit/masked_policy_tokens"] == 6


def test_truncation_bounds_only_one_side():
    batch, metrics = corrected("decoupled_token_is")
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(np.exp(-0.4))
    assert batch["response_mask"].tolist() == MASK * 3


def test_an_observation_with_weight_is_caught_beside_a_rejection():
    batch, _ = corrected("decoupled_geo_rs")
    batch["response_mask"][3] = 1
    _, fault = audited(batch)
    assert (fault.what, fault.row, fault.token) == ("an interpreter token has weight in the loss", 0, 3)
