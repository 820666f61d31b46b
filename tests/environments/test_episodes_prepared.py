"""`retool prepare data=environment`: episodes by seed for training, validation and evaluation."""

import json
import sys

import pytest

from retool_mcore.config import compose
from retool_mcore.data.held_back import shared_problem
from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import check_ability, check_answers, listed
from retool_mcore.train import prepare

MODULE = """
from retool_mcore.tools.base import Tool, function_schema

class Same:
    "Says the same to every seed."

    def reset(self, seed=None):
        return "Begin.", {}

    def step(self, action):
        return "Go on.", 0.0, False, False, {}

class Beside(Tool):
    schema = function_schema("beside", "Of the user's.", {"type": "object", "properties": {}})
"""
ENVIRONMENT = "retool_mcore.environments"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "same_env.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("same_env", None)


def made(tmp_path, use, *words):
    sizes = "data.episodes={train: 6, held_back: 2, test: 3}"
    given = ["data=environment", "model=none", f"runs_dir={tmp_path}", "name=t", sizes, f"toolbox.use={use}", *words]
    prepare.run(compose("prepare", given))
    return compose("rl", [*given, "recipe.answer=environment"])


def entry(kind, name):
    return f"{{path: {ENVIRONMENT}.{kind}, args: {{make: same_env.Same, name: {name}}}}}"


def test_each_environment_has_its_seeds_in_each_split(tmp_path, capsys):
    use = f"[{entry('gym.GymEnvironment', 'a')},{entry('text.TextEnvironment', 'b')},{{path: same_env.Beside}}]"
    config = made(tmp_path, use, "data.prompt='Play: {question}'")
    files = [config.data.train_files, config.data.held_back_files, config.data.validation_files]
    rows = [rows_of(file) for file in files]
    assert [len(part) for part in rows] == [12, 4, 6]
    seeds = [sorted({row["extra_info"]["index"] for row in part}) for part in rows]
    assert seeds == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9, 10]]
    assert {row["prompt"][0]["content"] for part in rows for row in part} == {"Play: Begin."}
    tools = {
        row["data_source"]: [t["function"]["name"] for t in json.loads(row["extra_info"]["tools"])] for row in rows[0]
    }
    assert tools == {"a": ["a", "beside"], "b": ["beside"]}
    named = {row["data_source"]: row["extra_info"]["environment"] for row in rows[0]}
    assert named == {"a": None, "b": "b"}
    assert "6 episodes of each of 2 for train" in capsys.readouterr().out
    for file in files:
        check_rl(file)
    assert shared_problem(listed(files[0]), listed(files[1])) is None, "equal words, other seeds"
    assert shared_problem(listed(files[0]), listed(files[0])) is not None
    check_ability(listed(files[0]), config.recipe)
    check_answers(listed(files[0]), config.recipe)


def test_without_an_environment_it_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"none of its entries is one: add it there \(docs/environments.md\)"):
        made(tmp_path, "[{path: same_env.Beside}]")
