"""The loop of train/rl_loop.py next to verl's trainer, on real engines with the tiny policy: every figure that no clock
decides, to the last bit; and what is left of a step that was killed."""

import json
import time

import pytest
from e2e_runs import metrics_of, started, succeed

from benchmarks.train.loops import CASES, RL, compare

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]
SIZE = (*RL, "data.program_timeout_s=60")


@pytest.mark.parametrize("case", ["retool", "gae", "rejection", "otc", "bypass"])
def test_a_recipe_trains_as_with_verls_trainer(fork_of_cold_start, monkeypatch, case):
    found = []
    for side in ("0", "1"):
        monkeypatch.setenv("RETOOL_LOOP", side)
        run = succeed("rl", fork_of_cold_start, *SIZE, *CASES[case])
        found.append(metrics_of(run / "rl"))
        (run / "rl").rename(run / f"rl-{side}")
    for row in compare(case, *found):
        assert row["different"] == {} and row["only_verl"] == [], row


@pytest.mark.parametrize(("case", "bound"), [("partial", 1), ("one_step_off", 1), ("async", 2)])
def test_rollouts_run_ahead_within_their_bound(fork_of_cold_start, monkeypatch, case, bound):
    monkeypatch.setenv("RETOOL_LOOP", "1")
    metrics = metrics_of(succeed("rl", fork_of_cold_start, *SIZE, *CASES[case]) / "rl")
    assert sorted(metrics) == [1, 2, 3]
    for step, values in metrics.items():
        assert values["actor/audit/gradient_interpreter_tokens"] == 0
        assert values["push/verified"] == step + 1
        assert values["training/off_policy/trajectory_staleness_worst/max"] <= bound


def test_a_killed_step_goes_on_with_what_was_finished_and_trains_on_the_same(fork_of_cold_start, monkeypatch):
    monkeypatch.setenv("RETOOL_LOOP", "1")
    size = (*SIZE, *CASES["retool"], "data.rl.save_every=1")
    run = succeed("rl", fork_of_cold_start, *size)
    undisturbed = metrics_of(run / "rl")
    (run / "rl").rename(run / "rl-undisturbed")
    with started("rl", fork_of_cold_start, *size):
        until(lambda: kept(run) and (run / "rl/checkpoints/global_step_2/COMPLETE").exists())
    again = metrics_of(succeed("rl", fork_of_cold_start, *size) / "rl")
    assert again[3]["rollout/taken_over"] > 0
    for name in ("critic/score/mean", "response_length/mean", "actor/pg_loss", "actor/grad_norm"):
        assert again[3][name] == undisturbed[3][name], name


def kept(run):
    return [path for path in run.glob("rl/unfinished/step_000003-*/*") if path.stat().st_size]


def until(true, limit_s=900):
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_checkpoint_says_what_was_asked_for_and_not_taken(fork_of_cold_start, monkeypatch):
    monkeypatch.setenv("RETOOL_LOOP", "1")
    run = succeed("rl", fork_of_cold_start, *SIZE, *CASES["partial"])
    state = json.loads((run / "rl/checkpoints/global_step_3/prompts.json").read_text())
    assert len(state["asked"]) == 8 and all(step in (2, 3) for _, step, _, _ in state["asked"])
