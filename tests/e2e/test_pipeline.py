"""The stages, whole, on real engines: verl, Megatron, vLLM and Ray, in both parallel layouts and both tool formats."""

import json

import pytest
from e2e_runs import RL_STEPS, SFT_STEPS, metrics_of, succeed, whole_steps
from recipe_cases import PIPELINE

from retool_mcore.metrics.records import read_step, step_files

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

# Float32 on both sides: what is left is the order of sums.
MAX_PROBABILITY_DIFFERENCE = 1e-5
MAX_LOG_PROB_DIFFERENCE = 1e-3  # of the least likely token


def assert_rl_is_sound(run, steps: int, plain_reward: bool = True) -> None:
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == list(range(1, steps + 1))
    for values in metrics.values():
        assert values["training/rollout_probs_diff_max"] < MAX_PROBABILITY_DIFFERENCE
        assert 0 <= values["behaviour/code_ratio"] <= 1
        assert values["audit/policy_tokens"] > 0 and values["audit/weighted_interpreter_tokens"] == 0
        assert values["actor/audit/gradient_interpreter_tokens"] == 0
        assert values["mismatch/max"] < MAX_LOG_PROB_DIFFERENCE
    records = [record for path in step_files(run / "rl/trajectories").values() for record in read_step(path)]
    assert len(records) == 16 * steps
    for record in records:
        punishment = record.get("overlong") or 0.0
        sampled = [i for span in record["spans"] if span["kind"] == "policy" for i in range(span["start"], span["end"])]
        assert [i for i, bit in enumerate(record["response_mask"]) if bit] == sampled
        assert record["acc"] in (0.0, 1.0)
        if plain_reward:
            assert record["score"] == pytest.approx(2 * record["acc"] - 1 + punishment, abs=1e-6)
    # So early in its training the policy's calls may all be malformed: then it has read why.
    assert any(span["kind"] == "observation" for record in records for span in record["spans"])
    assert (run / "rl/policy/config.json").is_file()
    assert list((run / "rl/tensorboard").glob("events.*"))


def test_tp2_text_from_cold_start_to_export(trained):
    """TP=2 with sequence parallelism: cold start, RL, evaluation of its result, export."""
    runs = trained
    sft = metrics_of(runs / "t/sft")
    assert sft[SFT_STEPS]["train/loss"] < 0.7 * sft[1]["train/loss"]
    assert sft[SFT_STEPS]["val/loss"] < 0.7 * sft[1]["train/loss"]
    run = succeed("eval", runs, "policy=rl", "problems=8", plainly=True)
    assert_rl_is_sound(run, steps=RL_STEPS)
    result = json.loads((run / "eval/rl/metrics.json").read_text())
    assert (
        result["samples"] == 8 and result["step"] == RL_STEPS and 0 <= result["accuracy"]["arithmetic"]["mean@1"] <= 1
    )
    succeed("export", runs, "policy=rl", plainly=True)
    report = json.loads((run / "export/policy/export.json").read_text())
    assert report["log_prob_difference"] < 1e-4 and report["step"] == RL_STEPS


def test_pp2_with_function_calls(tmp_path):
    """PP=2 and hermes function calls: cold start, RL by OTC, export."""
    layout = ("parallel=cpu-pp2", "rollout.format=hermes")
    ((recipe, changes),) = PIPELINE.items()
    succeed("prepare", tmp_path, *layout)
    succeed("sft", tmp_path, *layout)
    run = succeed("rl", tmp_path, *layout, f"recipe={recipe}", "data.rl.steps=3", *changes)
    assert_rl_is_sound(run, steps=3, plain_reward=False)
    every = whole_steps(run, steps=3).values()
    assert all("actor/kl_loss" in values for values in every)
    assert (run / "rl/fewest_calls.jsonl").exists() == any(values["reward/accuracy"] > 0 for values in every)
    succeed("export", tmp_path, "policy=rl", *layout)
    assert json.loads((run / "export/policy/export.json").read_text())["log_prob_difference"] < 1e-4
