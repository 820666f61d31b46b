"""RL with an agent program: its tokens are those of our own loop, and its segments are trained."""

import json
import sys
from pathlib import Path

import pytest
from e2e_runs import succeed, whole_steps

from retool_mcore.metrics.records import read_step

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
STEPS = 2
# The reward grows worse with every token above 10: the groups of a policy that gets nothing right have advantages.
DIFFERENT_LENGTHS = "recipe.overlong_buffer=310"
SIZE = (f"data.rl.steps={STEPS}", f"data.rl.save_every={STEPS}", DIFFERENT_LENGTHS, "data.rl.mini_batch=2")
# Two sub-agents before the main conversation, which is asked twice for its first reply.
FORKS = """
import json, os, sys
sys.path.insert(0, {folder!r})
from calculator import ask
messages = json.load(open(os.environ["RETOOL_ROW"]))["messages"]
for number in range(1 + int(os.environ["RETOOL_SEED"]) % 2):
    ask([{{"role": "user", "content": f"1+{{number}}"}}])
ask(messages)
reply = ask(messages)
if not reply.get("tool_calls"):
    ask([*messages, reply, {{"role": "user", "content": "2+2"}}])
"""


def agent(script) -> tuple[str, ...]:
    return ("environment=endpoint", f"environment.agent=[{sys.executable},{script}]")


def test_two_steps_with_the_plain_script(fork_of_cold_start):
    run = succeed("rl", fork_of_cold_start, *SIZE, *agent(ROOT / "examples/agents/calculator.py"))
    metrics = whole_steps(run, STEPS)
    for values in metrics.values():
        assert values["gateway/segments"] == 1 and values["gateway/attempts"] == 1
        assert values["audit/misaligned_tokens"] == 0 and values["audit/weighted_interpreter_tokens"] == 0
        assert values["mismatch/max"] < 1e-3 and values["actor/grad_norm"] > 0
    records = read_step(run / "rl/trajectories/step_000001.parquet")
    assert len(records) == 16 and {record["segment"] for record in records} == {0}


def test_segments_of_one_episode_are_trained_with_its_reward(fork_of_cold_start, tmp_path):
    script = tmp_path / "forks.py"
    script.write_text(FORKS.format(folder=str(ROOT / "examples/agents")))
    run = succeed("rl", fork_of_cold_start, *SIZE, "pipeline=partial", "train.eval_every=-1", *agent(script))
    metrics = whole_steps(run, STEPS)
    for values in metrics.values():
        assert values["gateway/segments"] > 2 and values["gateway/opened/sibling"] > 0
        assert values["audit/misaligned_tokens"] == 0 and values["audit/misaligned_log_probs"] == 0
        assert values["actor/grad_norm"] > 0
    assert metrics[1]["mismatch/max"] < 1e-3  # later steps take turns that an older policy wrote
    records = read_step(run / "rl/trajectories/step_000001.parquet")
    episodes: dict = {}
    for record in records:
        episodes.setdefault((record["uid"], record["sample"]), []).append(record)
    assert len(episodes) == 16 and any(len(rows) > 2 for rows in episodes.values())
    for rows in episodes.values():
        assert [row["segment"] for row in rows] == list(range(rows[0]["segments"]))
        assert len({row["score"] for row in rows}) == 1
        advantages = {float(value) for row in rows for value in row["advantages"][row["response_mask"]]}
        assert len(advantages) == 1, json.dumps(sorted(advantages))
