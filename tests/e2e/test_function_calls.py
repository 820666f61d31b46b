"""Tool-N1 and ToolRL whole on real engines: data in xLAM's columns, a short cold start, three RL steps, evaluation."""

import json

import pyarrow.parquet as parquet
import pytest
from e2e_runs import retool, whole_steps
from recipe_cases import FUNCTIONS

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(1800)]

STEPS = 3
SIZE = (
    "data=functions",
    "data.functions.sft=1600",
    "data.functions.train=64",
    "data.functions.validation=16",
    "data.sft.steps=100",
    "data.sft.warmup_steps=4",
    "data.sft.save_every=100",
    "data.sft.eval_every=100",
    "data.rl.batch=4",
    "data.rl.mini_batch=4",
    "data.rl.n=4",
    f"data.rl.steps={STEPS}",
    f"data.rl.save_every={STEPS}",
)


def succeed(stage, runs, *overrides):
    done = retool(stage, "name=t", f"runs_dir={runs}", *SIZE, *overrides)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return runs / "t"


@pytest.mark.parametrize(("recipe", "style"), [("tool_n1", "list"), ("toolrl", "lines")])
def test_three_steps(tmp_path, recipe, style):
    written = f"data.functions.style={style}"
    succeed("prepare", tmp_path, written)
    succeed("sft", tmp_path, written)
    run = succeed("rl", tmp_path, written, f"recipe={recipe}", *FUNCTIONS[recipe])
    metrics = whole_steps(run, STEPS)
    for values in metrics.values():
        shares = [value for name, value in values.items() if name.startswith("behaviour/finish/")]
        assert sum(shares) == pytest.approx(1)
    assert max(values["actor/grad_norm"] for values in metrics.values()) > 0
    # The cold start has taught it to call, and a call ends the episode.
    assert max(values["behaviour/finish/tool"] for values in metrics.values()) > 0
    if recipe == "tool_n1":
        assert all("actor/kl_loss" in values for values in metrics.values())
    tables = [parquet.read_table(path) for path in sorted((run / "rl/trajectories").glob("*.parquet"))]
    rows = [row for table in tables for row in table.to_pylist()]
    assert len(rows) == STEPS * 16
    calls = [call for row in rows for call in row["calls"]]
    assert calls and {call["tool"] for call in calls if not call["malformed"]} <= {
        "add",
        "area",
        "timer",
        "weather",
        "trip",
    }
    low, high = (-1, 1) if recipe == "tool_n1" else (-3, 4)
    assert all(low <= row["score"] <= high for row in rows)
    assert len({row["score"] for row in rows}) > 1

    evaluated = succeed("eval", tmp_path, written, "policy=rl", "problems=8")
    found = json.loads((evaluated / "eval/rl/metrics.json").read_text())
    assert found["samples"] == 8 and 0 <= found["accuracy"]["xlam"]["mean@1"] <= 1
