"""`retool serve`: what it serves, and to whom. The server is train/serve.py. No torch."""

import os
from collections.abc import Sequence
from pathlib import Path

from omegaconf import open_dict

from retool_mcore.cli.chat import become, chat_config
from retool_mcore.errors import UserError
from retool_mcore.gateway.access import KEY, check_key
from retool_mcore.ports import bare

FOLDER = "serve"  # in the run's
TOOLS = ("server", "client")


def run(
    target: Path,
    overrides: Sequence[str],
    *,
    tools: str,
    host: str,
    port: int,
    raw: bool,
    context: int | None,
    timeout_s: float,
) -> None:
    """Become the server of the policy of `target`, a run or a Hugging Face folder. Raises UserError."""
    host = bare(host)
    check_key(host, os.environ.get(KEY))
    tools, overrides = who_runs_tools(tools, overrides)
    config = chat_config(target, overrides)
    with open_dict(config):
        asked = {"tools": tools, "host": host, "port": port, "raw": raw, "context": context}
        config.serve = {**asked, "timeout_s": timeout_s}
    from retool_mcore.preflight.run import check_chat

    check_chat(config)
    become("retool_mcore.train.serve", config, FOLDER)


def who_runs_tools(tools: str, overrides: Sequence[str]) -> tuple[str, list[str]]:
    """Return who runs the tools and the other overrides: tools=WHO is the same as --tools WHO. Raises UserError."""
    named = [word.partition("=")[2] for word in overrides if word.startswith("tools=")]
    who = (named or [tools])[-1]
    if who not in TOOLS:
        raise UserError(f"--tools is {who!r}: expected {' or '.join(TOOLS)}.")
    return who, [word for word in overrides if not word.startswith("tools=")]
