"""docs/metrics.md has a line for every scalar that a run has logged or that our code can log, and for no other."""

import ast
import functools
import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

import retool_mcore

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "metrics.md"
# Names that the stages of a quickstart have written to RUN/STAGE/metrics, a line a stage.
RECORDED = Path(__file__).parent / "recorded_metrics.jsonl"
PACKAGE = Path(retool_mcore.__file__).parent
# A metric's name as our code writes it: a slash between words, parts of it filled in.
NAME = re.compile(r"(?:[a-z_]+|\{\})(?:/(?:[a-z_@{}]+))+")
NO_METRICS = {"mile/hour", "km/h", "rl/trajectories", "rl/audit"}  # units, folders


def patterns(page: str) -> dict[str, re.Pattern]:
    """Each documented name, its braces taken apart, with what it matches: a word in capitals is any part of a name."""
    found = {}
    for line in page.splitlines():
        if not line.startswith("| `"):
            continue
        for group in re.findall(r"`([^`]+)`", line.split(" | ")[0]):
            parts = [part.split(",") for part in re.split(r"[{}]", group)]
            for name in map("".join, itertools.product(*parts)):
                words = re.split(r"([A-Z]{4,}|\bN\b|(?<=_)N\b|(?<=@)K\b|\.\.\.)", name)
                regex = "".join(
                    ".+" if word == "..." else "[^/]+" if number % 2 else re.escape(word)
                    for number, word in enumerate(words)
                )
                found[name] = re.compile(regex)
    return found


def recorded() -> list[str]:
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return sorted({name for line in lines for name in line["names"]})


@functools.cache
def in_code() -> set[str]:
    """Keys of dictionaries in the package that look like a metric; what is filled in at run time is {}."""
    keys = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Dict | ast.DictComp):
                keys |= {_text(key) for key in (node.keys if isinstance(node, ast.Dict) else [node.key])}
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                keys.add(_text(node.slice))
    return {key for key in keys if key and NAME.fullmatch(key) and not key.startswith("{}/{}")} - NO_METRICS


def _text(node) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def _documented(name: str, known: dict[str, re.Pattern]) -> bool:
    if "{}" not in name:  # a metric's own part: our code puts `behaviour/` or the like before it elsewhere
        return any(regex.fullmatch(name) or regex.fullmatch(f"behaviour/{name}") for regex in known.values())
    filled = re.compile(".*".join(map(re.escape, name.split("{}"))))
    return any(filled.fullmatch(known_name) or filled.fullmatch(known_name.split("/", 1)[-1]) for known_name in known)


@pytest.fixture(scope="module")
def known() -> dict[str, re.Pattern]:
    return patterns(PAGE.read_text())


def test_every_scalar_that_was_logged_has_a_line(known):
    bare = [name for name in recorded() if not any(regex.fullmatch(name) for regex in known.values())]
    assert not bare, f"docs/metrics.md says nothing of {bare}"


def test_every_scalar_in_the_code_has_a_line(known):
    names = in_code()
    assert {"mismatch/kl", "gpu_idle/rank_{}", "behaviour/{}", "val/{}accuracy"} <= names
    bare = sorted(name for name in names if not _documented(name, known))
    assert not bare, f"docs/metrics.md says nothing of {bare}"


def test_no_line_is_of_a_scalar_that_nothing_logs(known):
    """Each is in a recorded run, in our code, or a word of verl's (its critic, its other pipelines)."""
    verl = Path(importlib.util.find_spec("verl").submodule_search_locations[0])
    sources = [*PACKAGE.rglob("*.py"), *(verl / "trainer").rglob("*.py"), *(verl / "workers").rglob("*.py")]
    words = {word for path in sources for word in re.findall(r"\w+", path.read_text())}
    logged = {*recorded(), *in_code()}
    idle = []
    for name, regex in known.items():
        last = re.findall(r"[a-z_]{4,}", re.sub(r"[A-Z]{4,}|\.\.\.", " ", name))[-1].strip("_")
        if not any(regex.fullmatch(one) for one in logged) and not any(last in word for word in words):
            idle.append(name)
    assert not idle, f"nothing logs {idle}"


def test_a_scalar_without_a_line_is_found(known):
    assert any(regex.fullmatch("behaviour/arithmetic/finish/answer") for regex in known.values())
    assert any(regex.fullmatch("mismatch/turn_03/max") for regex in known.values())
    assert not any(regex.fullmatch("actor/unheard_of") for regex in known.values())
    assert not _documented("actor/{}_of_nothing", known)
