"""Examples of resolved configurations are as written down, and every preset composes, alone and with others."""

import itertools

import pytest
from resolved_examples import EXAMPLES, FOLDER, presets, resolved, single_choices, text

from retool_mcore.config import CONFIG_DIR
from retool_mcore.config.models import Rl
from retool_mcore.errors import UserError

WITHOUT_COLD_START = {"environment", "human_eval", "reasoning_gym", "repo_bugs"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_as_written_down(name):
    words = EXAMPLES[name]
    written = (FOLDER / f"{name}.yaml").read_text()
    assert f"# retool {' '.join(words)}\n{text(words)}" == written, "python tests/config/resolved_examples.py writes it"


def test_every_group_has_its_presets():
    # `site` and `coldstart` are read by cluster/site.py and coldstart/config.py, no part of a stage's configuration.
    folders = {folder.name for folder in CONFIG_DIR.iterdir() if folder.is_dir()} - {"site", "coldstart"}
    assert folders == set(Rl.groups) and all(name in presets(group) for group, name in Rl.groups.items())


@pytest.mark.parametrize(("stage", "choice"), single_choices(), ids=lambda value: value)
def test_every_preset_composes(stage, choice):
    group, _, name = choice.partition("=")
    if choice == "model=folder" or (stage == "sft" and group == "data" and name in WITHOUT_COLD_START):
        with pytest.raises(UserError, match="no value for model.path|this configuration has no data.sft"):
            resolved(stage, choice)
        return
    assert resolved(stage, choice)[group].get("name", name) == name


@pytest.mark.nightly
def test_every_recipe_composes_with_every_layout_and_pipeline():
    for names in itertools.product(*map(presets, ("recipe", "parallel", "pipeline"))):
        resolved(
            "rl", *(f"{group}={name}" for group, name in zip(("recipe", "parallel", "pipeline"), names, strict=True))
        )
