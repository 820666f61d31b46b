"""`retool plan`: the words of the command line as a problem, and its answer."""

import re
import shlex
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError
from retool_mcore.planner import shape as shapes
from retool_mcore.planner.layout import Batch, Layout, switches
from retool_mcore.planner.machine import MACHINES, Machine
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Problem, search
from retool_mcore.planner.table import print_plans
from retool_mcore.planner.write import BASE, check_target, write_config

GPUS = {name.partition("-")[0]: machine for name, machine in MACHINES.items()}
MEAN_SHARE = 1 / 3  # of the longest sequence, when no mean is given


def run(
    model: str,
    gpus: str,
    *,
    gpu_memory: float,
    max_length: int,
    gpu: str | None = None,
    sequences: int = 512,
    mean_length: int | None = None,
    rl: bool = True,
    top: int = 10,
    write: Path | None = None,
) -> None:
    """Searches, prints the table and writes the chosen layout to `write`. Raises UserError for anything wrong."""
    nodes, gpus_per_node = parse_gpus(gpus)
    machine = find_machine(gpu, gpu_memory).replace(gpus_per_node=gpus_per_node)
    for option, value in (("--max-length", max_length), ("--sequences", sequences), ("--top", top)):
        if value < 1:
            raise UserError(f"{option} {value}: expected 1 or more.")
    if mean_length is not None and not 1 <= mean_length <= max_length:
        raise UserError(f"--mean-length {mean_length}: expected 1 to {max_length}, which is --max-length.")
    if write is not None:
        check_target(write, CONFIG_DIR)
    batch = Batch.spread(sequences, max_length, mean_length or max_length * MEAN_SHARE)
    base = OmegaConf.load(CONFIG_DIR / "parallel" / f"{BASE}.yaml")
    layout = Layout(**switches(base.megatron))
    problem = Problem(shapes.named(model), nodes, machine, batch, rl, layout)
    found = search(problem)
    if write is not None:
        command = ["retool", "plan", "--model", model, "--gpus", gpus, "--gpu-memory", f"{gpu_memory:g}"]
        command += ["--max-length", str(max_length), "--sequences", str(sequences)]
        command += ["--gpu", gpu] if gpu else []
        command += ["--mean-length", str(mean_length)] if mean_length else []
        command += [] if rl else ["--sft"]
        write_config(problem, found.chosen, write, shlex.join(command))
    print_plans(problem, found, top=top)
    if write is not None:
        print(f"The first line is in {write}; try it: retool {'rl' if rl else 'sft'} parallel={write.stem} --dry-run")


def parse_gpus(gpus: str) -> tuple[int, int]:
    """(nodes, GPUs of a node) of NODESxGPUS or of a single number of GPUs in one node."""
    found = re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})", gpus.strip().lower())
    if not found:
        raise UserError(f"--gpus {gpus}: expected NODESxGPUS, as in 2x8.")
    return int(found[1] or 1), int(found[2])


def find_machine(gpu: str | None, memory: float) -> Machine:
    """The GPU that is named, or the first whose memory is nearest, with `memory` GiB."""
    if not 1 <= memory <= 1024:
        raise UserError(f"--gpu-memory {memory:g}: expected GiB of one GPU, as in 80.")
    if gpu is None:
        found = min(GPUS.values(), key=lambda machine: abs(machine.memory / GIB - memory))
    elif gpu.upper() in GPUS:
        found = GPUS[gpu.upper()]
    else:
        raise UserError(f"--gpu {gpu}: expected one of {', '.join(GPUS)}.")
    return found.replace(name=f"{found.name.partition('-')[0]} with {memory:g} GiB", memory=memory * GIB)
