"""Every sentence of `errors.refusals` is there under the name that is asked for, and told all that it mentions."""

import ast
from pathlib import Path
from string import Formatter

import pytest
import yaml

PACKAGE = Path(__file__).parents[1] / "retool_mcore"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "= refusals(__file__)" in path.read_text())


def asked(path: Path) -> dict[str, set[str | None]]:
    """By sentence what the module tells it; None: a mapping, too."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    own = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "refused"]
    return {call.args[0].value: {word.arg for word in call.keywords} for call in own}


def mentioned(sentence: str) -> set[str]:
    fields = [field for _, field, _, _ in Formatter().parse(sentence) if field]
    return {field.partition(".")[0].partition("[")[0] for field in fields}


def mentions(path: Path) -> dict[str, set[str]]:
    return {name: mentioned(said) for name, said in yaml.safe_load(path.with_suffix(".yaml").read_text()).items()}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_sentences_are_those_asked_for(path):
    calls, there = asked(path), mentions(path)
    assert calls.keys() <= there.keys() and there.keys() - calls.keys() <= used_otherwise(path)
    told = {name: words for name, words in calls.items() if None not in words}  # else some come as a mapping
    assert {name: there[name] - words for name, words in told.items() if there[name] - words} == {}


def used_otherwise(path: Path) -> set[str]:
    """Names that the module's own text has besides."""
    strings = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    return {name for name in mentions(path) if name in strings}
