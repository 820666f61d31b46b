"""Overrides for several stages: each gets those that it has, and what none has is refused."""

import os
import subprocess
import sys

import pytest

from retool_mcore.config import compose, own_words
from retool_mcore.config.overrides import Unknown

STAGES = ("prepare", "sft", "rl", "eval", "export")


@pytest.mark.parametrize("word", ["recipee=dapo", "train.stpes=3", "data=arithmetic", "recipe=none_such"])
def test_what_no_stage_has_is_left_for_the_refusal(word):
    assert [own_words(stage, [word], STAGES) for stage in STAGES] == [[word]] * len(STAGES)


def test_a_groups_choice_is_not_taken_for_an_unknown_key_below_it():
    words = ["data=file", "data.file.no_such=1", "recipe=dapo"]
    assert own_words("sft", words, STAGES) == words[:2]


def test_a_stage_by_itself_refuses_what_another_has():
    assert own_words("sft", ["recipe=dapo"], ["sft"]) == ["recipe=dapo"]
    with pytest.raises(Unknown, match="the stage sft has no group recipe"):
        compose("sft", ["recipe=dapo"])


@pytest.mark.parametrize("stage", ["prepare", "sft", "rl"])
def test_each_stage_takes_what_it_has(stage):
    shared = ["name=s", "recipe=dapo", "train.lr=2e-6", "verl.trainer.save_freq=3", "seed=2"]
    own = {"prepare": [0, 1, 4], "sft": [0, 2, 3, 4], "rl": [0, 1, 2, 3, 4]}[stage]
    words = own_words(stage, shared, STAGES)
    assert words == [shared[place] for place in own]
    compose(stage, words)


def test_the_scripts_stages_are_told_by_the_environment(tmp_path):
    retool = [sys.executable, "-c", "from retool_mcore.cli.main import main; raise SystemExit(main())"]
    command = [*retool, "prepare", "--dry-run", f"runs_dir={tmp_path}", "pipeline=async"]
    codes = [
        subprocess.run(command, env=os.environ | told, capture_output=True).returncode
        for told in ({}, {"RETOOL_STAGES": "prepare rl"})
    ]
    assert codes == [2, 0]
