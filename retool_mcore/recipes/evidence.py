"""Which tests check a recipe: read from the tests' source, for docs/recipes.md. Runs and imports none of them."""

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from retool_mcore.recipes.group_filters import drops_groups

TESTS = Path(__file__).parents[2] / "tests"
_ESTIMATORS = "recipes/test_estimators.py"
_WORKED = ("reward/*.py", "recipes/test_filters.py", _ESTIMATORS)  # values worked out by hand
# How the tests of an advantage estimator begin in that file.
_TITLES = {
    "grpo": "grpo",
    "rloo": "leave_one_out",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "gae": "gae",
}


def parts(recipe: Mapping) -> set[str]:
    """The functions of ours that a recipe (its section of the configuration) is made of, by name."""
    filters = recipe["filters"]
    used = {recipe["reward"]["name"], recipe["group_reward"]["name"], *filters["samples"]} - {None}
    if recipe["overlong_buffer"]:
        used.add("soft_overlong")
    if drops_groups(filters):
        used.add("group_reason")
    if filters["all_equal"]:
        used.add("keep_group")
    if filters["accuracy"] is not None:
        used.add("keep_by_accuracy")
    return used


def worked_tests(recipe: Mapping) -> list[str]:
    """`file::test` of the tests that compare one of the recipe's parts with values worked out by hand."""
    used, estimator = parts(recipe), f"{_ESTIMATORS}::test_{_TITLES[recipe['advantage']]}"
    return [name for name, words in _tests() if used & words or name.startswith(estimator)]


@functools.cache
def _tests() -> list[tuple[str, frozenset[str]]]:
    paths = sorted(path for pattern in _WORKED for path in TESTS.glob(pattern))
    return [
        (
            f"{path.relative_to(TESTS)}::{node.name}",
            # The estimators' tests are known by their names: the words in them are verl's.
            frozenset() if path.stem == "test_estimators" else {*_words(node), path.stem.removeprefix("test_")},
        )
        for path in paths
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _words(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


@functools.cache
def engine_tests(recipe: str) -> str:
    """Where a recipe runs three steps on real engines, and whether at every change or nightly; "" where nowhere."""
    names = {recipe, f"recipe={recipe}"}
    for path in sorted(TESTS.glob("e2e/test_*.py"), key=lambda path: path.name != "test_recipes.py"):
        for node in ast.parse(path.read_text()).body:
            words = set(_words(node))
            if isinstance(node, ast.Assign) and words & {"EVERY_CHANGE", "NIGHTLY"} and names & words:
                return f"{path.relative_to(TESTS)}, {'nightly' if 'NIGHTLY' in words else 'every change'}"
            if isinstance(node, ast.FunctionDef) and names & words:
                return f"{path.relative_to(TESTS)}, nightly"
    return ""
