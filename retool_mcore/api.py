"""Functions for scripts and notebooks that the package itself does not use (docs/python.md)."""

import asyncio
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from retool_mcore.config import compose
from retool_mcore.runner.launch import launch, stage_dir
from retool_mcore.sandbox.base import Result
from retool_mcore.sandbox.create import create_sandbox


def evaluate(overrides: Sequence[str]) -> dict[str, Any]:
    """Run `retool eval` with these overrides to its end and return its metrics.

        evaluate(["model=/models/Qwen2.5-7B-Instruct", "data=file", "data.file.eval=mine.jsonl", "k=4"])

    Returns {"accuracy": {source: {"mean@k", "best@k", "maj@k"}}, shares from 0 to 1; "behaviour": {source: {name:
    mean}} (metrics/behaviour.py); "k"; "samples"; "sandbox_errors"; "policy": the folder that was evaluated; "step":
    its training step; "folder": the result folder's path, whose trajectories.jsonl `read_step` reads}. An evaluation
    that is complete already is read, not run again.

    Raises:
        UserError: bad input, before an engine starts.
        StageFailed, Stopped: as runner/launch.py::launch.
    """
    config = compose("eval", overrides)
    launch("eval", config)
    folder = stage_dir("eval", config)
    return json.loads((folder / "metrics.json").read_text()) | {"folder": folder}


class Sandbox:
    """The code interpreter for callers that are no coroutines: `with Sandbox() as sandbox: sandbox.run("1 + 1").value`.

    `options` are the keys of the configuration's section `sandbox` (sandbox/create.py::create_sandbox), as timeout_s in
    seconds and memory_mb in MiB; without a `kind` it is this machine's. Threads may share one. Raises UserError for
    options that make no sense.
    """

    def __init__(self, **options: Any):
        self._sandbox = create_sandbox({"kind": "local"} | options)
        # A loop of its own: a notebook's thread runs one already, in which nothing can be waited for.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, code: str, *, timeout_s: float | None = None, files: Mapping[str, bytes] | None = None) -> Result:
        """Run a program and wait for its end, `files` in its folder; nothing that it does raises (sandbox/base.py)."""
        running = self._sandbox.run(code, timeout_s=timeout_s, files=files)
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def close(self) -> None:
        """End the sandbox's processes. May be called again."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._sandbox.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()
