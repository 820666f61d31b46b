"""`retool simulate`: a run's steps on more GPUs, in events over the planner's costs."""

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from retool_mcore.cli.plan import asked, problem_of, recorded
from retool_mcore.errors import UserError

if TYPE_CHECKING:
    from retool_mcore.planner.scale import Row, Turns

HEADINGS = "GPUs|sequences|step\ns|tokens/s\na GPU|speed|gene-\nration %|tools\n%|train-\ning %|push\n%|save\n%"
HEADINGS += "|sent again,\ncomputed %|staleness\nmean, most|ETTR"


def simulate(
    overrides: list[str] | None = None,
    gpus: str | None = None,
    scale_batch: bool = False,
    lengths_of: Path | None = None,
    mean_length: int | None = None,
    calls: float = 3.0,
    tool_seconds: float = 1.0,
    partial: float = 0.0,
    steps: int = 2,
    seed: int = 1,
    gpu: str | None = None,
    gpu_memory: float | None = None,
    json_file: Path | None = None,
    plot: Path | None = None,
) -> None:
    """Play whole steps of a run on other numbers of GPUs: seconds, tokens/s, what bounds it, staleness, and the share
    of the time that failures leave (ETTR)."""
    from rich.console import Console
    from rich.table import Table

    from retool_mcore.planner import run, scale
    from retool_mcore.planner.table import WIDTH, numbers

    config, shape, card = asked("rl", overrides or [], gpu, gpu_memory)
    own = config.pipeline.rollout_nodes * config.pipeline.rollout_gpus + config.parallel.nodes * card.gpus_per_node
    turns = [turns_of(record) for record in recorded(lengths_of, COLUMNS)] if lengths_of else []
    rows: list[Row] = []
    table = Table(*numbers(*HEADINGS.split("|")), "bound by", padding=(0, 0))
    for count in sizes(gpus) if gpus else [own]:
        sized = scale.resized(config, count, scale_batch=scale_batch)
        problem, told = problem_of(sized, shape, card, lengths_of, mean_length)
        plan = run.present(sized, problem)
        order = scale.order_of(sized, problem, plan, partial)
        tools = scale.Tools(calls, tool_seconds)
        groups = scale.drawn(problem, sized.train.n, sized.rollout.max_turns, seed, tools, turns)
        rows.append(scale.row(sized, problem, plan, order, scale.played(problem, plan, order, groups, steps), seed))
        table.add_row(*cells(rows[-1], rows[0]))
    batch = "grow with the GPUs" if scale_batch else "stay as the run has them"
    of_tools = "turns and tools are that run's" if turns else f"{calls:g} calls of {tool_seconds:g} s on average"
    console = Console(width=WIDTH, highlight=False)
    console.print(
        f"Batch and mini-batch {batch}; lengths: {told}; {of_tools}. Nothing here was measured on so many GPUs."
    )
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps([asdict(row) | {"speed": row.speed / rows[0].speed} for row in rows], indent=1))
    if plot:
        from retool_mcore.cli.figures import write

        count = [row.gpus for row in rows]
        speed = [("simulated", count, [row.speed / rows[0].speed for row in rows])]
        speed += [("as the GPUs", count, [number / count[0] for number in count])]
        parts = [(name, count, [row.parts[name] for row in rows]) for name in rows[0].parts]
        write(plot, {"speed": speed, "seconds of a step": parts}, x="GPUs")


COLUMNS = ["prompt_ids", "spans", "calls"]


def sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise UserError(f"--gpus {text}: expected numbers of GPUs, as in 16,64,1024.")
    return [int(part) for part in parts]


def turns_of(record: dict) -> "Turns":
    """A trajectory as it was recorded: what each turn read in and sampled, and the seconds of its calls."""
    turns, given, spent = [], len(record["prompt_ids"]), Counter()
    for span in record["spans"]:
        if span["kind"] == "policy":
            turns.append((given, span["end"] - span["start"]))
        given = 0 if span["kind"] == "policy" else given + span["end"] - span["start"]
    for call in record["calls"] or ():
        spent[call["turn"]] += call["duration_s"]
    return turns, [spent[number] for number in range(len(turns) - 1)]


def cells(row: "Row", first: "Row") -> list[str]:
    shares = (f"{100 * row.parts[name] / row.step:.1f}" for name in ("generation", "tools", "training", "push", "save"))
    found = [f"{row.gpus:,}", f"{row.sequences:,}", f"{row.step:,.1f}", f"{row.tokens:,.0f}"]
    found += [f"{row.speed / first.speed:.1f}", *shares, f"{100 * row.again:.1f}"]
    return [*found, f"{row.staleness[0]:.1f}, {row.staleness[1]}", f"{row.ettr:.3f}", row.bound]
