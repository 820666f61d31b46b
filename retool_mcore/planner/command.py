"""`retool plan`: the words of the command line as a problem, its answer as tables and a file of configs/parallel/."""

import re
import shlex
from pathlib import Path

from jinja2 import Environment, PackageLoader
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

from retool_mcore.config import CONFIG_DIR
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.planner import shape as shapes
from retool_mcore.planner.layout import Batch, Layout, switches
from retool_mcore.planner.machine import MACHINES, Machine
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Found, Plan, Problem, model_tflops, search

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


WIDTH = 140  # of the table, however narrow the terminal: a wrapped row cannot be read


def print_plans(problem: Problem, found: Found, *, top: int, console: Console | None = None) -> None:
    """The `top` quickest, one line for each division into TP, PP and CP; the first line is the chosen one."""
    console = console or Console(width=WIDTH)
    batch, machine = problem.batch, problem.machine
    mean = sum(batch.lengths) / len(batch.lengths)
    console.print(
        f"{problem.shape.parameters / 1e9:.2f} B parameters, {problem.nodes} x {machine.gpus_per_node} {machine.name}; "
        f"a step is {len(batch.lengths)} sequences of at most {batch.longest:,} and on average {mean:,.0f} tokens."
    )
    console.print(ranking(problem, found.shown(top)))
    best = found.chosen
    table = Table("memory of the fullest GPU at the update's peak", "GiB")
    table.columns[1].justify = "right"
    for name, size in best.memory.parts.items():
        if size:
            table.add_row(name, f"{size / GIB:.1f}")
    table.add_section()
    table.add_row("peak of torch's allocator", f"{best.memory.peak / GIB:.1f}")
    table.add_row(
        "fragments, CUDA, NCCL" + (", sleeping vLLM" if problem.rl else ""), _gib(best.gpu_bytes - best.memory.peak)
    )
    table.add_row("all of it", f"{best.gpu_bytes / GIB:.1f}")
    console.print(table)
    table = Table("seconds of the update", "s", "%")
    table.columns[1].justify = table.columns[2].justify = "right"
    for name, took in best.update.parts.items():
        if took >= 0.001 * best.update.step:
            table.add_row(name, f"{took:.2f}", f"{100 * took / best.update.step:.1f}")
    console.print(table)
    if best.rollout is not None:
        console.print(
            f"vLLM: TP{best.rollout.tp}, gpu_memory_utilization {best.rollout.utilisation:.2f}, "
            f"{best.rollout.cache_tokens:,} tokens of KV cache a replica."
        )
    dropped = "; ".join(f"{reason}: {count:,}" for reason, count in found.refused.most_common())
    console.print(f"{found.tried:,} layouts tried, {len(found.plans):,} fit. Dropped: {dropped or 'none'}.")


def ranking(problem: Problem, plans: list[Plan]) -> Table:
    table = Table(padding=(0, 0))
    experts = ["EP"] if problem.shape.experts else []
    for heading in ("", "TP", "PP", "VPP", "CP", "DP", *experts, "micro-batch\ntokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("recompute", no_wrap=True)
    table.add_column("offload", no_wrap=True)
    rest = ["GiB", "update\ns", "TFLOP/s\na GPU", "bubble\n%"]
    rest += ["vLLM\nTP", "generation\ns", "log-probs\ns"] if problem.rl else []
    for heading in [*rest, "step\ns"]:
        table.add_column(heading, justify="right", no_wrap=True)
    for number, plan in enumerate(plans, start=1):
        layout = plan.layout
        cells: list[object] = [number, layout.tp, layout.pp, layout.vpp, layout.cp, layout.dp]
        cells += [*[layout.ep] * len(experts), f"{layout.micro_batch_tokens:,}"]
        offloaded = "weights" * layout.param_offload, "optimizer" * layout.optimizer_offload
        cells += [
            layout.recompute,
            "+".join(filter(None, offloaded)) or "-",
            _gib(plan.gpu_bytes),
            f"{plan.seconds['update']:.1f}",
        ]
        cells += [f"{model_tflops(problem, plan):.0f}", f"{100 * plan.update.parts['bubble'] / plan.update.step:.0f}"]
        if plan.rollout is not None:
            cells += [plan.rollout.tp, f"{plan.seconds['generation']:.1f}", f"{plan.seconds['log-probs']:.1f}"]
        table.add_row(*map(str, cells), f"{plan.step:.1f}")
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


BASE = "1gpu"  # the group that a written file is laid over: its settings are those of all GPUs


def config_text(problem: Problem, plan: Plan, command: str) -> str:
    found = {"machine": problem.machine, "nodes": problem.nodes, "rl": problem.rl, "lengths": problem.batch.lengths}
    found |= {"plan": plan, "layout": plan.layout, "longest": problem.batch.longest}
    template = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, keep_trailing_newline=True)
    return template.get_template("parallel.yaml.jinja").render(**found, command=command, base=BASE, gib=GIB)


def check_target(path: Path, config_dir: Path) -> None:
    """Raises UserError unless `path` is a new NAME.yaml in configs/parallel/, where `parallel=NAME` finds it."""
    wanted = config_dir / "parallel"
    if path.absolute().parent.resolve() != wanted.resolve() or not re.fullmatch(r"[\w.-]+\.yaml", path.name):
        raise UserError(f"--write {path}: expected a NAME.yaml in configs/parallel/, so that parallel=NAME finds it.")
    if path.exists():
        raise UserError(f"--write {path}: the file exists; remove it first or choose another name.")


def write_config(problem: Problem, plan: Plan, path: Path, command: str) -> None:
    write_atomically(path, config_text(problem, plan, command))
