"""Runs side by side on the GPUs of a machine, forked from one process that has imported the libraries."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from retool_mcore.backends.env import stage_env
from retool_mcore.runner.template import forked

Job = tuple[str, list[list[str]]]  # a run's name and its commands


def command(stage: str, runs: Path, name: str, words: list[str], without: str | None = None) -> list[str]:
    """Return the command of a stage of the run `name`; without: the part of the method that is left out."""
    retool = ["-c", "import sys; from retool_mcore.cli.main import main; sys.exit(main())"]
    program = ["-m", "benchmarks.learning.without", without] if without else retool
    return [sys.executable, *program, stage, f"name={name}", f"runs_dir={runs}", *words]


def placed(number: int, gpus: int, mps: Path | None) -> dict[str, str]:
    """Return the variables of the run with this number: its GPU, of those visible, and the GPU's MPS server."""
    if not gpus:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    gpu = visible[number % gpus]
    server = {"CUDA_MPS_PIPE_DIRECTORY": str(mps / gpu)} if mps else {}
    return {"CUDA_VISIBLE_DEVICES": gpu, "OMP_NUM_THREADS": "2"} | server


def run_all(found: Sequence[Job], runs: Path, gpus: int, at_once: int, stagger: float, mps: Path | None) -> int:
    """Run the jobs, at most `at_once` side by side, in turn on the GPUs, and return how many failed. One that hangs
    holds its own place alone."""
    (runs / "logs").mkdir(parents=True, exist_ok=True)
    asked = {"parallel": {"device": "cuda" if gpus else "cpu"}}
    # The libraries are imported once, or were before: launch/template.sh.
    with forked({"RETOOL_TEMPLATE": "on"} | stage_env(asked), []) as (env, _):

        def one(number: int) -> int:
            name, commands = found[number]
            if number < at_once:
                time.sleep(stagger * number)  # their starts compete for cores
            own = env | placed(number, gpus, mps)
            start = time.monotonic()
            with (runs / "logs" / f"{name}.log").open("w") as log:
                code = 0
                for words in commands:
                    code = code or subprocess.run(words, env=own, stdout=log, stderr=log).returncode
            print(f"{name}: exit {code} after {time.monotonic() - start:.0f} s", flush=True)
            return code

        with ThreadPoolExecutor(at_once) as pool:
            return sum(code != 0 for code in pool.map(one, range(len(found))))
