"""repo_bugs as the parquet files of RL: what `retool prepare data=repo_bugs` runs."""

import asyncio
from pathlib import Path

from retool_mcore.data.prompts import render
from retool_mcore.data.schema import RL_SCHEMA, rl_row, with_texts, write_parquet
from retool_mcore.environments.repo_bugs import DATA_SOURCE, RepoBug, generate
from retool_mcore.sandbox.create import create_sandbox

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
