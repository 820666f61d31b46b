"""The study of a published model: its plan, its arms and the programs of its traces agree with each other."""

import importlib.util
from pathlib import Path

import pytest

from examples.real_model import arms, families, traces
from retool_mcore.analysis.plan import read_plan
from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.config.overrides import parse

PLAN = Path(arms.__file__).with_name("plan.yaml")
needs_reasoning_gym = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="needs pip install reasoning-gym==0.1.25"
)


def test_the_plan_names_the_arms_seeds_and_data_sources_that_run():
    plan = read_plan(PLAN)
    names = {name for name, _ in arms.rl_jobs(Path("runs"), [], "model", [])}
    assert {plan.arms[arm].format(seed=seed) for arm in plan.arms for seed in plan.seeds} <= names
    sources = families.TRAINED | families.EASY | families.HARDER | families.UNSEEN
    claimed = {source for claim in plan.claims.values() for source in claim.sources or ()}
    assert claimed == set(sources)


def test_the_families_are_read_as_an_override():
    text = families.sections(families.TRAINED, families.EASY)
    _, (value,) = parse([f"data.reasoning_gym.families={text}"], CONFIG_DIR)
    assert [entry["name"] for entry in value.value] == [*families.TRAINED, *families.EASY]
    assert value.value[0]["parameters"] == families.TRAINED["chain_sum"].parameters


@pytest.mark.parametrize("arm", arms.ARMS)
def test_an_arms_words_are_a_configuration(arm, tmp_path):
    jobs = dict(arms.rl_jobs(tmp_path, ["model=folder", f"model.path={tmp_path}"], str(tmp_path), []))
    (command,) = jobs[f"{arm}-s1"]
    config = compose("rl", command[command.index("rl") + 1 :])
    assert config.rollout.format == arms.ARMS[arm].format and config.recipe.reward.name == "reasoning_gym"
    assert config.train.steps == 30 and config.data.prompt.startswith("{question}")
    assert config.recipe.group_reward.name == ("otc_grpo" if arm == "efficient" else None)


def test_a_cold_start_is_prepared_and_trained_once_for_each_seed_that_is_asked(tmp_path):
    names = [
        name for name, _ in arms.rl_jobs(tmp_path, [], "model", []) if name in ("tool-s1", "efficient-s1", "text-s2")
    ]
    jobs = dict(arms.sft_jobs(tmp_path, ["model=folder", f"model.path={tmp_path}"], tmp_path, names))
    assert list(jobs) == ["start-tool-s1", "start-text-s2"]
    for prepare, sft in jobs.values():
        compose("prepare", prepare[prepare.index("prepare") + 1 :])
        compose("sft", sft[sft.index("sft") + 1 :])


@needs_reasoning_gym
def test_programs_of_traces_get_full_marks_and_no_question_twice(tmp_path):
    counts = traces.write(tmp_path / "traces", tmp_path, sft=4)
    assert counts == {"rows": 40, "wrong": 0}
    lines = (tmp_path / "traces/tool.jsonl").read_text().splitlines()
    assert len(set(lines)) == 40 and sum("<code>" in line for line in lines) == 20
