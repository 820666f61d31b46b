"""The page's values are those of the configuration, and its prices those of the planner."""

import re
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from retool_mcore.config import compose
from retool_mcore.planner import run

PAGE = (Path(__file__).parents[2] / "docs" / "flagship.md").read_text()
FLAGSHIP = ["name=r32", "model=qwen2.5-32b", "parallel=2x8-80g", "data=math"]


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:3] == "| `"]


@pytest.mark.parametrize("stage", ["rl", "sft"])
def test_every_value_is_the_configurations(stage):
    config, found = compose(stage, FLAGSHIP), rows(stage.upper())
    assert len(found) >= 8
    for key, here, *_ in found:
        assert OmegaConf.select(config, key.strip("`")) == yaml.safe_load(here), key


def test_the_prices_of_both_readings_are_the_planners():
    section = PAGE.split('## Both readings of "batch 512"')[1].split("\n## ")[0]
    lines = re.findall(r"^\| (.*?) \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) (days|h) \| ([\d,]+) \|$", section, re.MULTILINE)
    assert len(lines) == 3
    for words, trajectories, seconds, length, unit, gpu_hours in lines:
        config = compose("rl", [*FLAGSHIP, *re.sub(r"^\(none\).*", "", words).strip("`").split()])
        problem = run.read(config, run.shape_of(config), run.machine_of(config))
        plan = run.present(config, problem)
        hours = run.course(config, problem, plan).hours
        assert len(problem.batch.lengths) == int(trajectories.replace(",", ""))
        assert f"{plan.step:,.0f}" == seconds and f"{hours * 16:,.0f}" == gpu_hours
        assert f"{hours / (24 if unit == 'days' else 1):.1f}" == length
