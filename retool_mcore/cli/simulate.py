"""`retool simulate`: a run's steps on more GPUs, in events over the planner's costs."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from retool_mcore.cli.app import Gpu, GpuMemory, LengthsOf, MeanLength, RunOverrides
from retool_mcore.cli.plan import asked, problem_of, recorded
from retool_mcore.errors import UserError

if TYPE_CHECKING:
    from retool_mcore.planner.scale import Row, Turns

HEADINGS = "GPUs|sequences|step\ns|tokens/s\na GPU|speed|gene-\nration %|tools\n%|train-\ning %|push\n%|save\n%"
HEADINGS += "|sent again,\ncomputed %|staleness\nmean, most|ETTR"
COLUMNS = ["prompt_ids", "spans", "calls"]
# Means of exponential distributions where no run is given; the number of calls is cut at the run's max_turns.
CALLS = 3.0
TOOL_S = 1.0  # measured: 0.004 s for short programs (docs/measured/rollout.md), at most 30 s


def simulate(
    overrides: RunOverrides = None,
    gpus: Annotated[str, Option(metavar="N,...", help="As in 16,64,1024; default: the run's own.")] = "",
    scale_batch: Annotated[bool, Option("--scale-batch", help="Batch and mini-batch grow with the GPUs.")] = False,
    lengths_of: LengthsOf = None,
    mean_length: MeanLength = None,
    calls: Annotated[float, Option(metavar="N", help="Mean calls of a trajectory, without a run.", min=0)] = CALLS,
    tool_seconds: Annotated[float, Option(metavar="S", help="Mean seconds of a call, without a run.", min=0)] = TOOL_S,
    steps: Annotated[int, Option(metavar="N", help="Steps to play, after those that fill the queue.", min=1)] = 2,
    seed: Annotated[int, Option(metavar="N", help="The same seed gives the same figures.")] = 1,
    gpu: Gpu = None,
    gpu_memory: GpuMemory = None,
    json_file: Annotated[Path | None, Option("--json", metavar="FILE", help="Write the figures there.")] = None,
) -> None:
    """Play whole steps of a run on other numbers of GPUs: seconds, tokens/s, what bounds it, staleness, and the share
    of the time that failures leave (ETTR)."""
    from rich.console import Console
    from rich.table import Table

    from retool_mcore.planner import run, scale
    from retool_mcore.planner.search import refusal
    from retool_mcore.planner.table import WIDTH, numbers

    config, shape, card = asked("rl", overrides or [], gpu, gpu_memory)
    if not all(part.isdecimal() for part in gpus.split(",") if gpus):
        raise UserError(f"--gpus {gpus}: expected numbers of GPUs, as in 16,64,1024.")
    turns = [turns_of(record) for record in recorded(lengths_of, COLUMNS)] if lengths_of else []
    rows: list[Row] = []
    table = Table(*numbers(*HEADINGS.split("|")), "bound by", padding=(0, 0))
    for count in map(int, (gpus or str(scale.gpus_of(config))).split(",")):
        sized = scale.resized(config, count, scale_batch=scale_batch)
        problem, lengths = problem_of(sized, shape, card, lengths_of, mean_length)
        plan = run.present(sized, problem)
        if why := refusal(problem, plan):
            raise UserError(f"{count} GPUs do not hold this run: {why}; `retool plan` says what to change.")
        order = scale.order_of(sized, problem, plan)
        groups = scale.drawn(sized, problem, seed, calls, tool_seconds, turns)
        rows.append(scale.row(sized, problem, plan, order, groups, steps, seed))
        table.add_row(*cells(rows[-1], rows[0]))
    batch = "grow with the GPUs" if scale_batch else "stay as the run has them"
    of_tools = "turns and tools are that run's" if turns else f"{calls:g} calls of {tool_seconds:g} s on average"
    console = Console(width=WIDTH, highlight=False)
    console.print(f"Batch and mini-batch {batch}; lengths: {lengths}; {of_tools}. Simulated, not measured.")
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps([asdict(row) | {"speed": row.speed / rows[0].speed} for row in rows], indent=1))


def turns_of(record: dict) -> "Turns":
    """A trajectory as it was recorded: what each turn read in and sampled, and the seconds of its calls."""
    input_tokens, spent = len(record["prompt_ids"]), defaultdict(float)
    turns: list[tuple[float, float]] = []
    for span in record["spans"]:
        size = span["end"] - span["start"]
        if span["kind"] == "policy":
            turns.append((input_tokens, size))
        input_tokens = 0 if span["kind"] == "policy" else input_tokens + size
    for call in record["calls"] or ():
        spent[call["turn"]] += call["duration_s"]
    return turns, [spent[number] for number in range(len(turns) - 1)]


def cells(row: "Row", first: "Row") -> list[str]:
    texts = [f"{row.gpus:,}", f"{row.sequences:,}", f"{row.step:,.1f}", f"{row.tokens:,.0f}"]
    names = ("generation", "tools", "training", "push", "save")
    texts += [f"{row.speed / first.speed:.1f}", *(f"{100 * row.parts[name] / row.step:.1f}" for name in names)]
    return [*texts, f"{100 * row.again:.1f}", f"{row.age[0]:.1f}, {row.age[1]}", f"{row.ettr:.3f}", row.bound]
