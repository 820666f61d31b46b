"""docs/configuration.md is what configs/ says, and configs/ holds no key that nothing reads."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import retool_mcore
from retool_mcore.config.overrides import leaves
from retool_mcore.config.resolve import CONFIG_DIR, compose

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page():
    spec = importlib.util.spec_from_file_location("configuration_page", ROOT / "docs" / "configuration.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(page):
    assert page.PAGE.read_text() == page.render(), "run `python -m docs.configuration` and commit docs/configuration.md"


def test_every_group_and_stage_is_on_the_page(page):
    composed = compose("rl")
    groups = {folder.name for folder in CONFIG_DIR.iterdir() if folder.is_dir()} - {"site", "coldstart"}
    assert groups == set(page.GROUPS) and groups <= set(composed)
    assert {path.stem for path in CONFIG_DIR.glob("*.yaml")} - {"model_base", "parallel_base", "recipe_base"} == set(
        page.STAGES
    )


@functools.cache
def read_words() -> set[str]:
    """Every word of a text, a name or a keyword in the code of the package and of the pages, and in interpolations."""
    words: set[str] = set()
    for path in [*Path(retool_mcore.__file__).parent.rglob("*.py"), *(ROOT / "docs").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                words.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words |= set(re.findall(r"\w+", node.value)) if len(node.value) < 60 else set()
            elif isinstance(node, ast.arg | ast.keyword):
                words.add(node.arg or "")
    for path in CONFIG_DIR.rglob("*.yaml"):
        for interpolation in re.findall(r"\$\{([^{}]*)", path.read_text()):
            words |= set(re.findall(r"\w+", interpolation))
    return words


def unread(keys: set[str], words: set[str]) -> list[str]:
    """The keys whose last word nothing reads."""
    return sorted(key for key in keys if key.rsplit(".", 1)[-1] not in words)


def our_keys() -> set[str]:
    """Our own keys of all files. What lies below megatron and verl is verl's, which refuses what it does not know."""
    found = set()
    for path in CONFIG_DIR.rglob("*.yaml"):
        node = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
        if path.parent.name in (
            "site",
            "network",
            "coldstart",
        ):  # read by dataclasses and a parser that refuse unknown keys
            continue
        for task in (
            "toolmath",
            "calls",
        ):  # its keys are families of problems
            node.get(task, {}).pop("mix", None)
        for section in ("defaults", "verl", "megatron"):
            node.pop(section, None)
        found |= {key for key, _ in leaves(node) if key}
    return found


def test_no_key_is_there_that_nothing_reads():
    keys = our_keys()
    assert {"keep_checkpoints", "train.keep_checkpoints", "filters.refill_limit"} & keys
    assert not unread(keys, read_words())


def test_a_key_that_nothing_reads_is_found():
    assert unread({"train.lr", "train.nothing_reads_this"}, read_words()) == ["train.nothing_reads_this"]
