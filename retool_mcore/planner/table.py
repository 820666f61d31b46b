"""The printed result of a search: the ranked table, the memory and the time of the chosen layout; and that layout as a
file of configs/parallel/."""

import re
from pathlib import Path

from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.table import Column, Table

from retool_mcore.errors import UserError
from retool_mcore.planner.memory import ENGINE_ASLEEP, GIB
from retool_mcore.planner.search import Found, Plan, Problem, model_tflops

BASE = "1gpu"  # the group that a written file is laid over: its settings are those of all GPUs
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
    console.print(memory_table(problem, best))
    table = Table("seconds of an optimizer step", *numbers("s", "%"))
    for name, took in best.update.parts.items():
        if took >= 0.001 * best.update.step:
            table.add_row(name, f"{took:.2f}", f"{100 * took / best.update.step:.1f}")
    console.print(table)
    dropped = "; ".join(f"{reason}: {count:,}" for reason, count in found.refused.most_common())
    console.print(f"{found.tried:,} layouts tried, {len(found.plans):,} fit. Dropped: {dropped or 'none'}.")


def numbers(*headings: str) -> list[Column]:
    return [Column(heading, justify="right", no_wrap=True) for heading in headings]


def ranking(problem: Problem, plans: list[Plan]) -> Table:
    experts = ["EP"] if problem.shape.experts else []
    words = (Column(heading, no_wrap=True) for heading in ("recompute", "offload"))
    engine = ["vLLM\nTP", "generation\ns", "log-probs\ns"] if problem.rl else []
    columns = numbers("GiB", "update\ns", "TFLOP/s\na GPU", "bubble\n%", *engine, "step\ns")
    sizes = numbers("", "TP", "PP", "VPP", "CP", "DP", *experts, "micro-batch\ntokens")
    table = Table(*sizes, *words, *columns, padding=(0, 0))
    for number, plan in enumerate(plans, start=1):
        layout = plan.layout
        cells: list[object] = [number, layout.tp, layout.pp, layout.vpp, layout.cp, layout.dp]
        cells += [*[layout.ep] * len(experts), f"{layout.micro_batch_tokens:,}"]
        cells += [layout.recompute, offloaded(layout), f"{plan.gpu_bytes / GIB:.1f}", f"{plan.seconds['update']:.1f}"]
        cells += [f"{model_tflops(problem, plan):.0f}", f"{100 * plan.update.parts['bubble'] / plan.update.step:.0f}"]
        if plan.rollout is not None:
            cells += [plan.rollout.tp, f"{plan.seconds['generation']:.1f}", f"{plan.seconds['log-probs']:.1f}"]
        table.add_row(*map(str, cells), f"{plan.step:.1f}")
    return table


def offloaded(layout) -> str:
    kinds = (["weights"] if layout.param_offload else []) + (["optimizer"] if layout.optimizer_offload else [])
    return "+".join(kinds) or "-"


def memory_table(problem: Problem, plan: Plan) -> Table:
    """Return the memory table of the fullest GPU: in an update, and in generation."""
    machine = problem.machine
    table = Table(f"of a GPU's {machine.memory / GIB:.1f} GiB", *numbers("GiB"))
    parts = dict(plan.memory.parts)
    asleep = ENGINE_ASLEEP * (plan.rollout is not None and not problem.own_gpus)
    parts |= {"CUDA, NCCL": plan.memory.outside, "sleeping vLLM": asleep}
    parts |= {"fragments": plan.memory.gpu - plan.memory.peak - plan.memory.outside}
    parts |= {" and ".join(problem.beside) or "-": plan.gpu_bytes - sum(parts.values())}
    for name, size in parts.items():
        if size > 0.01 * GIB:
            table.add_row(name, f"{size / GIB:.1f}")
    table.add_section()
    table.add_row("an update's peak", f"{plan.gpu_bytes / GIB:.1f}")
    if (engine := plan.rollout) is not None:
        share = engine.utilisation * machine.memory
        cache = f"{engine.cache_tokens:,} tokens of KV cache a replica"
        table.add_section()
        table.add_row(f"vLLM TP{engine.tp} at {engine.utilisation:.2f}, {cache}", f"{share / GIB:.1f}")
        table.add_row("what stays of the trainer", f"{plan.there / GIB:.1f}")
        table.add_row("idle in generation", f"{(machine.memory - share - plan.there) / GIB:.1f}")
    return table


def config_text(problem: Problem, plan: Plan, command: str) -> str:
    values = {"machine": problem.machine, "nodes": problem.nodes, "rl": problem.rl, "lengths": problem.batch.lengths}
    values |= {"plan": plan, "layout": plan.layout, "longest": problem.batch.longest}
    template = Environment(loader=PackageLoader(__package__, ""), trim_blocks=True, keep_trailing_newline=True)
    return template.get_template("parallel.yaml.jinja").render(**values, command=command, base=BASE, gib=GIB)


def check_target(path: Path, config_dir: Path) -> None:
    """Raises UserError unless `path` is a new NAME.yaml in configs/parallel/, where `parallel=NAME` finds it."""
    wanted = config_dir / "parallel"
    if path.absolute().parent.resolve() != wanted.resolve() or not re.fullmatch(r"[\w.-]+\.yaml", path.name):
        raise UserError(f"--write {path}: expected a NAME.yaml in configs/parallel/, so that parallel=NAME finds it.")
    if path.exists():
        raise UserError(f"--write {path}: the file exists; remove it first or choose another name.")
