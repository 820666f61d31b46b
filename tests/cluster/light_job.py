"""A job (cluster/job.py) whose stage is light_trainer.py: what lies between Slurm and the stage is real.

    python light_job.py STAGE OVERRIDES...

Left out are the checks of data and model, NCCL's, and the looks at the nodes, whose reports are made up: every node has
what 2x8-80g asks for, but for what `reports` says, {node: {key of a report: value}}, in the JSON file that LIGHT names.
Also there: `sweep_s`, how long the end of the stage takes on the nodes at least; `ask_s`, between two looks at the end
of the job's time; `locks` (false: flock keeps nobody out, as on a file system whose locks are each client's own).
"""

import fcntl
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from light_trainer import settings
from made_reports import good

import retool_mcore.preflight.run
from retool_mcore.cluster import job, job_signals, nccl_check, node_check
from retool_mcore.runner import launch

TRAINER = [sys.executable, str(Path(__file__).with_name("light_trainer.py"))]


def reports(nodes: Sequence[str], *_) -> list[dict]:
    """In the place of node_check.gather."""
    made = settings().get("reports", {})
    return [good(node, limits={"RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 10**6}) | made.get(node, {}) for node in nodes]


def on_all_nodes(stage: str, allocation: job.Allocation, srun: Callable, address: str, path: Path) -> list[str]:
    """In the place of job.torchrun_command."""
    options = [f"--nodes={len(allocation.nodes)}", f"--ntasks={len(allocation.nodes)}", "--kill-on-bad-exit=0"]
    return srun([*options, "--wait=30"], [*TRAINER, str(path)])


def slow_sweep(sweep: Callable, *given) -> None:
    sweep(*given)
    time.sleep(settings()["sweep_s"])


def main(arguments: Sequence[str]) -> int:
    os.environ["RETOOL_TEMPLATE"] = "off"
    retool_mcore.preflight.run.check = lambda *_: None
    nccl_check.unfit_nodes = lambda *_, **__: None
    node_check.gather = reports
    job.torchrun_command = on_all_nodes
    launch.stage_command = lambda stage, config, path: [*TRAINER, str(path)]
    if "sweep_s" in settings():
        job.sweep = partial(slow_sweep, job.sweep)
    job_signals.ASK_S = settings().get("ask_s", job_signals.ASK_S)
    if not settings().get("locks", True):
        fcntl.flock = lambda *_: None
    return job.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
