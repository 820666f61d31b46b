"""PPO with its critic, rollouts that run ahead, and repository tasks, on real engines with the tiny policy."""

import json
import math

import pyarrow.parquet as parquet
import pytest
from e2e_runs import SMALL, metrics_of, retool, succeed
from recipe_cases import REPOSITORIES

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS = 3
STALENESS = "training/off_policy/trajectory_staleness_worst"
# The policy is cold-started for a minute: rewards must differ although no answer is right.
DIFFERENT_LENGTHS = "recipe.overlong_buffer=150"
ANY_GROUP = ("recipe.filters.accuracy=null", "recipe.filters.refill_limit=50")


def finite(values, *names):
    for name in names:
        assert math.isfinite(values[name]), (name, values)


def test_ppo_trains_saves_and_resumes_its_critic(fork_of_cold_start):
    size = (f"data.rl.steps={STEPS}", "data.rl.save_every=1", DIFFERENT_LENGTHS, *ANY_GROUP)
    ppo = ("recipe=zerotir", "recipe.advantage=gae")
    run = succeed("rl", fork_of_cold_start, *ppo, *size)
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == [1, 2, 3]
    for values in metrics.values():
        finite(values, "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm", "critic/values/mean")
        assert values["critic/grad_norm"] > 0 and values["critic/lr"] == pytest.approx(5 * values["actor/lr"])
        assert values["actor/audit/gradient_interpreter_tokens"] == 0
    # The critic is kept and removed with the policy.
    kept = sorted(path.parent.name for path in run.glob("rl/checkpoints/global_step_*/critic"))
    assert kept == sorted(path.name for path in run.glob("rl/checkpoints/global_step_*")) and len(kept) <= 3

    again = succeed("rl", fork_of_cold_start, *ppo, f"data.rl.steps={STEPS + 1}", *size[1:])
    assert sorted(metrics_of(again / "rl")) == [1, 2, 3, 4], "step 4 follows, nothing is repeated"


@pytest.mark.parametrize("pipeline", ["one_step_off", "async"])
def test_rollouts_run_ahead_within_their_bound(fork_of_cold_start, pipeline):
    mini = "data.rl.mini_batch=2" if pipeline == "async" else "data.rl.mini_batch=4"
    size = (f"data.rl.steps={STEPS}", f"data.rl.save_every={STEPS}", mini, DIFFERENT_LENGTHS)
    run = succeed("rl", fork_of_cold_start, f"pipeline={pipeline}", *size)
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == [1, 2, 3]
    bound = 1 if pipeline == "one_step_off" else 2
    for step, values in metrics.items():
        finite(values, "actor/pg_loss", "actor/grad_norm", "reward/accuracy")
        assert values["actor/audit/gradient_interpreter_tokens"] == 0
        assert values["push/verified"] == step + 1 and values["push/verify_seconds"] > 0  # one before the first step
        assert 0 <= values[f"{STALENESS}/mean"] <= values[f"{STALENESS}/max"] <= bound
    assert metrics[1][f"{STALENESS}/max"] == 0 < metrics[3][f"{STALENESS}/max"]
    state = json.loads((run / f"rl/checkpoints/global_step_{STEPS}/prompts.json").read_text())
    pending = [step for _, step, _, _ in state["asked"]]  # asked for and not taken: a restart loses none of it
    assert len(pending) == bound * 4 and all(STEPS - bound < step <= STEPS for step in pending)
    rows = [row for path in run.glob("rl/trajectories/*.parquet") for row in parquet.read_table(path).to_pylist()]
    assert len(rows) == STEPS * 16


def test_skyrl_edits_repositories(tmp_path):
    def stage(name, *overrides):
        done = retool(name, "name=t", f"runs_dir={tmp_path}", *SMALL, "rollout.format=hermes", *overrides)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    # Its cold start calls the code interpreter, which here runs in the repository.
    stage("prepare")
    stage("sft")
    size = ("data.rl.batch=4", "data.rl.mini_batch=4", "data.rl.n=4", f"data.rl.steps={STEPS}", "data.rl.save_every=3")
    task = ("data=repo_bugs", "data.repo_bugs.train=8", "data.repo_bugs.validation=2", *size)
    small = ("name=t", f"runs_dir={tmp_path}", *task)
    for words in (("prepare", *small), ("rl", *small, "recipe=skyrl", *REPOSITORIES["skyrl"])):
        done = retool(*words)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / "t"
    metrics = metrics_of(run / "rl")
    assert sorted(metrics) == [1, 2, 3]
    for values in metrics.values():
        finite(values, "actor/pg_loss", "actor/grad_norm", "reward/accuracy", "stages/speed_up")
        assert values["filters/groups/failed"] == 0
    rows = [row for path in run.glob("rl/trajectories/*.parquet") for row in parquet.read_table(path).to_pylist()]
    assert len(rows) == STEPS * 16
    assert any(call["tool"] == "code_interpreter" for row in rows for call in row["calls"])
    trace = json.loads(max(run.glob("rl/trace/step_*.json")).read_text())
    assert {"prepare", "act", "score"} <= {event["name"] for event in trace["traceEvents"]}
