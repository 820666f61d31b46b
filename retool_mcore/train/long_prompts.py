"""data.drop_long_prompts: the files that RL and `retool eval` read, without the prompts that are too long."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from retool_mcore.data.lengths import without_long
from retool_mcore.data.policy_format import load_format
from retool_mcore.sandbox.create import create_sandbox
from retool_mcore.tools.toolbox import toolbox_of


def fitting_files(config, files: str | Iterable[str], policy: str, folder: Path) -> list[str]:
    """Return `files` as they are, or where data.drop_long_prompts is true those that `without_long` gives.

    policy: the folder of the tokenizer; folder: takes the copies.
    """
    paths = [files] if isinstance(files, str) else list(files)
    if not config.data.get("drop_long_prompts"):
        return paths
    fmt, tools = load_format(config, policy), None
    if fmt.name != "none":
        toolbox = toolbox_of(config, create_sandbox(config.sandbox))
        tools = toolbox.schemas or None
        asyncio.run(toolbox.close())
    limit = config.rollout.max_prompt_tokens
    return list(map(str, without_long(map(Path, paths), fmt, tools, limit, folder)))
