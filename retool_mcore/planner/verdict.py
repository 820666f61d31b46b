"""The planner's word on a run: two lines for a dry run and the checks before a start, tables for `retool plan`."""

from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from retool_mcore.planner.changes import Change, changes
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.run import Course, course, machine_of, present, read, shape_of
from retool_mcore.planner.search import NEAR, Plan, Problem, refusal
from retool_mcore.planner.shape import Shape
from retool_mcore.planner.table import memory_table, numbers


def lines(config: DictConfig, here: Sequence[str] = (), shape: Shape | None = None) -> list[str]:
    """Whether it fits, how long it takes, and the change that gains most. [] for what the planner does not know.

    here: names of this machine's GPUs. Raises UserError for a layout that does not divide the model.
    """
    shape = shape or (shape_of(config) if config.parallel.device == "cuda" else None)
    if "train" not in config or config.parallel.device != "cuda" or shape is None:
        return []
    problem = read(config, shape, machine_of(config, here))
    plan = present(config, problem)
    why, machine = refusal(problem, plan), problem.machine
    phases = ", ".join(f"{name} {took:,.0f}" for name, took in plan.seconds.items() if took >= 1)
    fits = f"fits {gpus(problem)}, {plan.gpu_bytes / GIB:.0f} of {machine.memory / GIB:.0f} GiB in an update"
    sentences = [f"{fits if why is None else f'does not fit: {why}'}; {plan.step:,.0f} s a step ({phases})"]
    sentences += [f"{lasts(course(config, problem, plan), problem)} (lengths: a third of the limit, on average)"]
    return sentences + [f"change {change}" for change in map(_told, changes(problem, plan)[:1])]


def gpus(problem: Problem) -> str:
    return f"{problem.nodes} x {problem.machine.gpus_per_node} {problem.machine.name}"


def lasts(found: Course, problem: Problem) -> str:
    saves = f"a checkpoint every {found.between / 3600:.1f} h" if found.between else "no checkpoint"
    if found.hours is None:
        return f"{saves}, each {found.save:.0f} s"
    return f"{saves}; the run {length(found.hours)}, {found.hours * (problem.world + problem.own_gpus):,.0f} GPU-hours"


def length(hours: float) -> str:
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def _told(change: Change) -> str:
    gained = change.before.step - change.after.step
    seconds = f"{-gained:+,.{0 if gained > 10 else 1}f} s a step"
    return f"{' '.join(change.words)}: {seconds} ({-gained / change.before.step:+.0%})"


def report(config: DictConfig, problem: Problem, plan: Plan, *, lengths: str, beside: Sequence[str]) -> None:
    """Prints it all. lengths: their source; beside: lines about a node's memory and the disk."""
    console, batch = Console(width=120, highlight=False), problem.batch
    mean = sum(batch.lengths) / len(batch.lengths)
    console.print(
        f"{problem.shape.parameters / 1e9:.2f} B parameters on {gpus(problem)}. A step: {len(batch.lengths):,} "
        f"sequences of at most {batch.longest:,} and on average {mean:,.0f} tokens ({lengths}), "
        f"{problem.updates} optimizer step{'s' if problem.updates > 1 else ''}."
    )
    run = course(config, problem, plan)
    table = Table("a step", *numbers("s", "%"))
    for name, took in plan.seconds.items():
        table.add_row(name, f"{took:,.1f}", f"{100 * took / plan.step:.1f}")
    table.add_section()
    table.add_row("all of it", f"{plan.step:,.1f}", "generation during the training" if problem.own_gpus else "100.0")
    if run.between:
        table.add_row("each save on top", f"{run.save:,.1f}", "")
    if run.validation:
        table.add_row("each validation on top", f"{run.validation:,.1f}", "")
    console.print(table)
    console.print(memory_table(problem, plan))
    for line in (*beside, f"{lasts(run, problem)[0].upper()}{lasts(run, problem)[1:]}."):
        console.print(line)
    why = refusal(problem, plan)
    console.print("It fits." if why is None else f"It does not fit: {why}.")
    proposals = changes(problem, plan)
    console.print(
        "What gains most, each on top of those before it:"
        if proposals
        else f"No single change gains {NEAR - 1:.1%}, within which a prediction cannot tell layouts apart."
    )
    for number, change in enumerate(proposals, start=1):
        console.print(f"  {number}. {_told(change)}", soft_wrap=True)
