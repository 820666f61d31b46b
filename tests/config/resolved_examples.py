"""Resolved configurations to read and to compare: `python tests/config/resolved_examples.py` writes them anew.

Our sections and, as `verl`, what they become in verl's keys; verl's own defaults are left out.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import yaml

from retool_mcore.config import CONFIG_DIR
from retool_mcore.config.load import resolve
from retool_mcore.config.to_verl import TRANSLATIONS

FOLDER = Path(__file__).parent / "examples"
LARGE = ("model=qwen2.5-32b", "parallel=2x8-80g", "data=math")
EXAMPLES = {
    "sft": ("sft",),
    "sft-large": ("sft", *LARGE),
    "rl": ("rl",),
    "rl-dapo-large": ("rl", *LARGE, "recipe=dapo"),
    "rl-async": ("rl", "recipe=grpo", "pipeline=async", "correction=bypass"),
    "rl-calls-8b": ("rl", "model=qwen3-8b", "parallel=1x8-80g", "data=xlam", "recipe=tool_n1", "sandbox=pool"),
    "eval": ("eval", "data=math", "model=qwen2.5-7b", "parallel=1gpu"),
    "export": ("export",),
}


def presets(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def resolved(stage: str, *overrides: str) -> dict:
    plain, typed, _ = resolve(stage, overrides)
    return plain | ({"verl": TRANSLATIONS[stage](typed)} if stage in TRANSLATIONS else {})


def text(words: tuple[str, ...]) -> str:
    """The YAML of a stage's resolved configuration; runs lie in HERE."""
    return yaml.safe_dump(resolved(*words), sort_keys=False, width=120).replace(os.getcwd(), "HERE")


def single_choices() -> Iterator[tuple[str, str]]:
    """(stage, choice) of every preset of every group, in RL and in the cold start where it has the group."""
    for group in ("model", "data", "parallel", "sandbox", "toolbox"):
        for stage in ("sft", "rl"):
            yield from ((stage, f"{group}={name}") for name in presets(group))
    for group in ("recipe", "pipeline", "correction"):
        yield from (("rl", f"{group}={name}") for name in presets(group))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, words in EXAMPLES.items():
        (FOLDER / f"{name}.yaml").write_text(f"# retool {' '.join(words)}\n{text(words)}")
