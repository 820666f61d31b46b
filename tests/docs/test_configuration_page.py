"""docs/configuration.md is what the typed configuration says, which has no key that nothing reads."""

import ast
import functools
import importlib.util
import re
from pathlib import Path

import pytest

import retool_mcore
from docs.fields import translation
from retool_mcore.config import CONFIG_DIR
from retool_mcore.config.keys import fields
from retool_mcore.config.load import resolve
from retool_mcore.config.models import STAGES, Rl
from retool_mcore.config.overrides import leaves
from retool_mcore.config.to_verl import TRANSLATIONS

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
    assert set(page.GROUPS) == set(Rl.groups)
    text = page.PAGE.read_text()
    assert all(f"## retool {stage}\n" in text for stage in STAGES)


def test_every_key_has_a_meaning(page):
    bare = [key for kind in STAGES.values() for key, _, why in fields(kind) if not why]
    assert not bare


def test_every_key_of_verl_that_is_set_is_on_the_page(page):
    for stage in TRANSLATIONS:
        plain, typed, _ = resolve(stage)
        set_keys = {key for key, _ in leaves(TRANSLATIONS[stage](typed))}
        shown = {key for key, _, _ in translation(stage)}
        assert {
            key for key in set_keys if not any(key == name or key.startswith(f"{name}.") for name in shown)
        } == set()


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
    """Our own keys. What lies below megatron is verl's, which refuses what it does not know."""
    keys = {key for kind in STAGES.values() for key, _, _ in fields(kind) if not key.endswith(".*")}
    return {key for key in keys if ".megatron." not in key}


def test_no_key_is_there_that_nothing_reads():
    keys = our_keys()
    assert {"train.keep_checkpoints", "recipe.filters.refill_limit"} <= keys
    assert not unread(keys, read_words())


def test_a_key_that_nothing_reads_is_found():
    assert unread({"train.lr", "train.nothing_reads_this"}, read_words()) == ["train.nothing_reads_this"]
