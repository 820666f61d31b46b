"""A policy with its engine, sandbox and tools, ready to answer: for `retool chat` and `retool serve`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from retool_mcore.data.formats import Format
from retool_mcore.data.policy_format import load_format
from retool_mcore.errors import UserError
from retool_mcore.rollout.episode import LIMITS, Limits
from retool_mcore.tools.toolbox import Toolbox

CONTEXTS = 4  # of the trained length: room for some questions, unless --context asks for another


@dataclass(frozen=True)
class Loaded:
    """What the answers of a policy need. tools: None in the format `none`. timeout_s: of a program. context: tokens."""

    fmt: Format
    engine: Any
    tools: Toolbox | None
    limits: Limits
    timeout_s: float
    context: int


def context_of(config, folder: Path, asked: int | None) -> int:
    """Return the conversation's tokens: `asked`, or a few times the trained length where the positions allow it."""
    trained = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    described = json.loads((folder / "config.json").read_text())
    most = described.get("text_config", described).get("max_position_embeddings") or trained
    if (asked or 0) > most:
        raise UserError(f"--context {asked} is more than the {most} positions of {folder}.")
    return min(asked or CONTEXTS * trained, most)


@asynccontextmanager
async def loaded(config, asked_context: int | None) -> AsyncIterator[Loaded]:
    """The policy of an evaluation's configuration; afterwards engine, tools and sandbox are closed."""
    from retool_mcore.backends.vllm.engine import build_engine  # vLLM takes seconds
    from retool_mcore.sandbox.create import create_sandbox
    from retool_mcore.tools.toolbox import create_toolbox

    policy = Path(config.policy_path)
    fmt, context = load_format(config, policy), context_of(config, policy, asked_context)
    limits = Limits(**{name: config.rollout[name] for name in LIMITS})
    if context <= limits.max_response_tokens:
        raise UserError(
            f"--context {context} leaves no room for a question: an answer may have {limits.max_response_tokens} "
            "tokens (rollout.max_response_tokens)."
        )
    config.rollout.max_prompt_tokens = context - config.rollout.max_response_tokens  # of the engine
    section, timeout_s = OmegaConf.to_container(config.toolbox, resolve=True), config.sandbox.timeout_s
    sandbox = create_sandbox(config.sandbox)
    toolbox = create_toolbox(section, sandbox=sandbox, timeout_s=timeout_s, error_lines=limits.error_lines)
    engine = build_engine(config)
    try:
        tools = None if fmt.name == "none" else toolbox.for_row({})
        yield Loaded(fmt, engine, tools, limits, timeout_s, context)
    finally:
        engine.shutdown()
        await toolbox.close()
        await sandbox.close()
