"""Environments as the parquet files of RL: what `retool prepare data=repo_bugs` and `data=environment` run."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retool_mcore.data.prompts import render
from retool_mcore.data.schema import RL_SCHEMA, rl_row, with_texts, write_parquet, write_rows
from retool_mcore.environments.repo_bugs import DATA_SOURCE, RepoBug, generate
from retool_mcore.errors import UserError
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.tools.base import Tool
from retool_mcore.tools.toolbox import make as make_tool

ABILITY = "repository"


def row(made: RepoBug, index: int, template: str, split: str) -> dict:
    extra = {"index": index, "split": split, "question": made.task.issue, "repository": made.task.to_json()}
    return rl_row(DATA_SOURCE, render(template, made.task.issue), ABILITY, made.bug, **extra)


def make(config) -> None:
    """Generate and verify both sets in the sandbox of `config`, and write them; prints what was made."""

    async def both() -> dict[str, list[RepoBug]]:
        sandbox = create_sandbox(config.sandbox)
        try:
            size = config.data.repo_bugs
            return {
                split: await generate(size[split], config.seed, split, sandbox, size.functions)
                for split in ("train", "validation")
            }
        finally:
            await sandbox.close()

    for split, made in asyncio.run(both()).items():
        path = Path(config.data[{"train": "train_files", "validation": "held_back_files"}[split]])
        rows = (row(one, n, config.data.prompt, split) for n, one in enumerate(made))
        write_parquet(rows, with_texts(RL_SCHEMA, ["repository"]), path)  # the task, as JSON text
        bugs = len({one.bug for one in made})
        print(f"repo_bugs: {len(made)} verified tasks with {bugs} different bugs in {path}")


def make_episodes(config) -> None:
    """Write the episodes of the environments in `toolbox.use`, as many of each in each split; print what was made.

    An environment is what has `rows` (environments/gym.py). The other tools are listed in all rows. Seeds follow each
    other: those of training, of the validation inside the run, of the evaluation. Raises UserError without one.
    """
    sandbox, size = create_sandbox(config.sandbox), config.data.episodes
    run = {"sandbox": sandbox, "timeout_s": config.sandbox.timeout_s, "error_lines": config.rollout.error_lines}
    made = [make_tool(entry, run) for entry in config.toolbox.use]
    environments = [one for one in made if hasattr(one, "rows")]
    if not environments:
        raise UserError(
            "data=environment makes episodes of the environments in toolbox.use, and none of its entries is one: add "
            "it there (docs/environments.md)."
        )
    beside = [one for one in made if isinstance(one, Tool) and one not in environments]
    begin = 0
    for split, key in (("train", "train_files"), ("held_back", "held_back_files"), ("test", "validation_files")):
        seeds, path = range(begin, begin + size[split]), Path(config.data[key])
        write_rows(_episodes(environments, seeds, split, config.data.prompt, beside), RL_SCHEMA, path)
        print(f"environment: {size[split]} episodes of each of {len(environments)} for {split} in {path}")
        begin = seeds.stop


def _episodes(
    environments: Iterable[Any], seeds: range, split: str, template: str, beside: list[Tool]
) -> Iterable[dict]:
    for environment in environments:
        yield from environment.rows(seeds, split, lambda seen: render(template, seen), beside)
