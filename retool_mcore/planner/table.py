"""What a search found, for a person: the ranked table, the memory and the time of the chosen layout."""

from rich.console import Console
from rich.table import Table

from retool_mcore.planner.memory import GIB
from retool_mcore.planner.search import Found, Plan, Problem, model_tflops

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
