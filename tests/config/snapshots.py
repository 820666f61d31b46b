"""Resolved configurations as hashes, so that a change of theirs is seen: `python tests/config/snapshots.py`.

    --write          take the present ones for right (say in the commit why they changed)
    --text FOLDER    write the full text of each, to be compared with another tree's by `diff -r`

Whole ones, with verl's own defaults, are one a stage. verl's do not depend on our choices, so a choice's snapshot goes
without them, in a quarter of the time. What differs between machines is left out, too, and of our dotted names
(`retool_mcore.recipes.outcome`) all but the last part: that they lead somewhere is test_architecture.py's to
see, and
a module that moves changes no configuration.
"""

import argparse
import hashlib
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR, compose, register_resolvers
from retool_mcore.config.resolve import _compose_files, _resolve
from retool_mcore.config.schema import check
from retool_mcore.errors import UserError

FILE = Path(__file__).with_suffix(".json")
LARGE = ("model=qwen2.5-32b", "parallel=2x8-80g", "data=math")
PLAIN = ("prepare", "sft", "eval", "export", "doctor")  # stages without a recipe and a pipeline


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / group).glob("*.yaml"))


def cases() -> Iterator[tuple[str, ...]]:
    """(stage, overrides...) of every stage x recipe x layout x pipeline, and of every other choice by itself."""
    for stage in (*PLAIN, "rl"):
        yield (stage,)
    yield "rl", *LARGE
    for stage, parallel in itertools.product(PLAIN, choices("parallel")):
        yield stage, f"parallel={parallel}"
    for recipe, parallel, pipeline in itertools.product(choices("recipe"), choices("parallel"), choices("pipeline")):
        yield "rl", f"recipe={recipe}", f"parallel={parallel}", f"pipeline={pipeline}"
    for group in ("data", "model", "sandbox", "toolbox", "correction"):
        for choice in choices(group):
            yield "rl", f"{group}={choice}"
    for group in ("data", "model"):
        for choice in choices(group):
            yield "sft", f"{group}={choice}"


def few() -> list[tuple[str, ...]]:
    """Of the products of RL as many as have every recipe, layout and pipeline; all the others."""
    found = []
    seen: set[str] = set()
    for case in cases():
        if case[0] != "rl" or len(case) < 3 or case[1:] == LARGE or set(case) - seen:
            found.append(case)
            seen |= set(case)
    return found


def text(case: tuple[str, ...]) -> str:
    """The configuration as YAML with sorted keys; of one that is refused, the refusal."""
    stage, *chosen = case
    try:
        if len(case) == 1:
            config = compose(stage)
        else:
            register_resolvers()
            config = _compose_files(stage, dict(choice.split("=") for choice in chosen), CONFIG_DIR)
            _resolve(config)
            check(OmegaConf.to_container(config))
        found = OmegaConf.to_yaml(config, sort_keys=True)
    except UserError as error:
        found = f"refused: {error}\n"
    # Runs lie below the working folder, and paths of files beside the configuration's.
    for path, word in ((os.getcwd(), "HERE"), (str(CONFIG_DIR), "CONFIGS"), (str(CONFIG_DIR.parent), "ROOT")):
        found = found.replace(path, word)
    return re.sub(r"retool_mcore(?:\.\w+)*\.(\w+)", r"retool_mcore...\1", found)


def digest(case: tuple[str, ...]) -> str:
    return hashlib.sha256(text(case).encode()).hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--text", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    found = {}
    for case in cases():
        name = " ".join(case)
        found[name] = digest(case)
        if arguments.text:
            arguments.text.mkdir(parents=True, exist_ok=True)
            (arguments.text / f"{name.replace(' ', ',')}.yaml").write_text(text(case))
    if arguments.write:
        FILE.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")
    kept = json.loads(FILE.read_text())
    changed = sorted(name for name in found.keys() | kept.keys() if found.get(name) != kept.get(name))
    print(f"{len(found)} configurations, {len(changed)} other than in {FILE.name}", *changed, sep="\n  ")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
