"""Every model family from its own random weights through a cold start, RL with the interpreter, export and evaluation.

The policies are too young to solve anything: what counts is that the engine's probabilities are the trainer's after
every push, in both formats, and that nothing on the way refuses the family.
"""

import json
from pathlib import Path

import pytest
from e2e_runs import metrics_of, retool
from families import FAMILIES, write_family
from safetensors.torch import load_file

from retool_mcore.backends.verl.fingerprint import HEAD

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(2400)]

SIZE = (
    "data.arithmetic.sft=96",
    "data.arithmetic.train=24",
    "data.arithmetic.validation=20",
    "data.arithmetic.held_back=4",
    "data.sft.batch=16",
    "data.sft.steps=3",
    "data.sft.warmup_steps=1",
    "data.sft.save_every=3",
    "data.sft.eval_every=3",
    "data.sft.max_length=1700",  # of these tokenizers every byte is a token, and hermes lists its tool
    "data.rl.batch=4",
    "data.rl.mini_batch=4",
    "data.rl.n=2",
    "data.rl.steps=2",
    "data.rl.save_every=2",
    "rollout.max_prompt_tokens=1300",
    "rollout.max_response_tokens=120",
    "rollout.max_observation_tokens=40",
    "rollout.max_turn_tokens=100",
)


def succeed(stage: str, runs: Path, *overrides: str) -> None:
    done = retool(stage, "name=t", f"runs_dir={runs}", *SIZE, *overrides)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


# Every family in both formats, tied and untied, under TP2 (experts: EP2) and PP2.
PATHS = [("text", False, "tp2"), ("hermes", False, "pp2"), ("text", True, "pp2"), ("hermes", True, "tp2")]


@pytest.mark.parametrize(("name", "tied", "layout"), PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_through_every_stage(family, name, tied, layout, tmp_path):
    folder, runs = write_family(tmp_path / "model", family, tied=tied), tmp_path / "runs"
    model = [f"model.path={folder}", "model.make=false", f"model.chat_template={FAMILIES[family].ours}"]
    experts = ["parallel.ep=2"] if family == "qwen3-moe" and layout == "tp2" else []
    given = [*model, f"parallel=cpu-{layout}", *experts, f"rollout.format={name}"]
    for stage in ("prepare", "sft", "rl", "export"):
        succeed(stage, runs, *given)
    succeed("eval", runs, *given, "problems=3", "k=2")
    steps = metrics_of(runs / "t" / "rl")
    # The second step's rollouts are of weights that were pushed over others.
    assert all(steps[step]["mismatch/max"] < 1e-4 for step in (1, 2))
    assert "verified in" in (runs / "t" / "rl" / "log.txt").read_text()
    exported = runs / "t" / "export" / "policy"
    assert json.loads((exported / "export.json").read_text())["step"] == 2
    assert (HEAD in load_file(exported / "model.safetensors")) is not tied


def test_the_update_replays_the_routes_of_its_old_log_probs(tmp_path):
    """verl stops where an update has no recorded routes; those of other tokens would give other log-probabilities."""
    folder = write_family(tmp_path / "model", "qwen3-moe")
    given = [f"model.path={folder}", "model.make=false", f"model.chat_template={FAMILIES['qwen3-moe'].ours}"]
    given += ["parallel.ep=2", "rollout.format=text"]
    for stage in ("prepare", "sft"):
        succeed(stage, tmp_path / "runs", *given)
    # The reward grows worse with every token above 10, so that groups have advantages.
    learning = ("recipe=grpo", "recipe.overlong_buffer=110", "parallel.megatron.router_replay.mode=R2")
    succeed("rl", tmp_path / "runs", *given, *learning)
    steps = metrics_of(tmp_path / "runs" / "t" / "rl")
    for step in (1, 2):
        assert abs(steps[step]["actor/ppo_kl"]) < 1e-6 < steps[step]["actor/grad_norm"]
        assert steps[step]["mismatch/max"] < 1e-4
