"""`retool plan`: the words of a stage, judged instead of started; or a model and GPUs, all layouts tried.

The planner is imported where it works: `retool --help` reads this file, too.
"""

import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from omegaconf import DictConfig
from typer import Option

from retool_mcore.cli.app import Gpu, GpuMemory, LengthsOf, MeanLength, RunOverrides
from retool_mcore.config import CONFIG_DIR, compose, own_words
from retool_mcore.config.load import resolve
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

if TYPE_CHECKING:
    from retool_mcore.planner import Batch, Machine, Shape
    from retool_mcore.planner.search import Problem

STEPS = 5  # the last of a run, whose lengths are taken
RECORDED_BYTES = 11  # of a token in RUN/rl/trajectories, compressed; measured on short trajectories


def plan(
    overrides: RunOverrides = None,
    model: Annotated[
        str | None, Option(metavar="NAME|FOLDER", help="qwen2.5-1.5b, -7b or -32b, or a Hugging Face folder.")
    ] = None,
    gpus: Annotated[str | None, Option(metavar="NODESxGPUS", help="As in 2x8.")] = None,
    gpu_memory: GpuMemory = None,
    max_length: Annotated[int | None, Option(metavar="TOKENS", help="Longest sequence, prompt and response.")] = None,
    gpu: Gpu = None,
    sequences: Annotated[int, Option(metavar="N", help="Sequences of a step.", min=1)] = 512,
    updates: Annotated[int, Option(metavar="N", help="Optimizer steps that share them.", min=1)] = 1,
    mean_length: MeanLength = None,
    lengths_of: LengthsOf = None,
    sft: Annotated[bool, Option("--sft", help="Training alone, no vLLM on the same GPUs.")] = False,
    top: Annotated[int, Option(metavar="N", help="Lines of the table.", min=1)] = 10,
    write: Annotated[
        Path | None, Option(metavar="FILE", help="Write the first line as configs/parallel/NAME.yaml.")
    ] = None,
) -> None:
    """Judge the layout of a run by the words of its stage: memory, seconds, days, what to change first. Or, with
    --model and --gpus, rank all layouts of a model on a cluster."""
    searches = {"--model": model, "--gpus": gpus, "--max-length": max_length}
    requested = [name for name, value in searches.items() if value is not None]
    if not requested and write is None:
        judge("sft" if sft else "rl", overrides or [], lengths_of, mean_length, gpu, gpu_memory)
        return
    if len(requested) < len(searches) or gpu_memory is None or overrides or lengths_of:
        raise UserError(
            "A search over all layouts takes --model, --gpus, --gpu-memory and --max-length, and no KEY=VALUE and "
            "--lengths-of; without the first four the layout of a run is judged."
        )
    from retool_mcore.planner import Batch, Layout, shape, table
    from retool_mcore.planner import search as tried
    from retool_mcore.planner.machine import find_machine
    from retool_mcore.planner.run import MEAN_SHARE
    from retool_mcore.planner.settings import switches

    nodes, gpus_per_node = parse_gpus(gpus)
    machine = replace(find_machine(gpu, gpu_memory), gpus_per_node=gpus_per_node)
    if max_length < 1:
        raise UserError(f"--max-length {max_length}: expected 1 or more.")
    if mean_length is not None and mean_length > max_length:
        raise UserError(f"--mean-length {mean_length}: expected 1 to {max_length}, which is --max-length.")
    if write is not None:
        table.check_target(write, CONFIG_DIR)
    batch = Batch.spread(sequences, max_length, mean_length or max_length * MEAN_SHARE)
    layout = Layout(**switches(resolve("rl", [f"parallel={table.BASE}"])[0]["parallel"]["megatron"]))
    problem = tried.Problem(shape.named(model), nodes, machine, batch, not sft, layout, updates)
    plans = tried.search(problem)
    if write is not None:
        command = shlex.join(["retool", *sys.argv[1:]])
        write_atomically(write, table.config_text(problem, plans.chosen, command))
    table.print_plans(problem, plans, top=top)
    if write is not None:
        print(f"The first line is in {write}; try it: retool {'sft' if sft else 'rl'} parallel={write.stem} --dry-run")


def judge(stage: str, words: list[str], run_of: Path | None, mean: int | None, gpu: str | None, gib: float | None):
    """Prints what the run needs, how long it takes and what to change first. Raises UserError."""
    from retool_mcore.cluster import forecast
    from retool_mcore.cluster.site import load_site
    from retool_mcore.planner import run, verdict
    from retool_mcore.planner.memory import GIB
    from retool_mcore.preflight import disk, memory, relations

    config, shape, card = asked(stage, words, gpu, gib)
    problem, lengths = problem_of(config, shape, card, run_of, mean)
    plan = run.present(config, problem)  # refuses a layout that divides nothing, before its bytes are asked for
    relations.check(stage, config)
    needs = memory.node_needs(config, shape)
    parts = sorted(needs.parts.items(), key=lambda part: -part[1])
    most = ", ".join(f"{name} {size / GIB:,.0f}" for name, size in parts)
    beside = [f"A node's memory: {needs.total / GIB:,.0f} GiB ({most})."]
    if config.train.save_every > 0:
        beside += [f"Disk: {disk.stage_line(config, shape.parameters)}."]
        if stage == "rl" and disk.follows_own_sft(config):
            sft = compose("sft", own_words("sft", words, ["sft", "rl"]))
            line = disk.chain_line({"sft": sft, "rl": config}, shape.parameters)
            beside += [f"Disk of {line}."]
    if "keep_trajectory_bytes" in config.train:
        tokens = sum(problem.batch.lengths)
        steps = max(1, int(config.train.keep_trajectory_bytes / (tokens * RECORDED_BYTES)))
        if steps < config.train.steps:
            beside += [f"Trajectories on the disk: of about the last {steps} steps (train.keep_trajectory_bytes)."]
    limit, course = forecast.limit(load_site()), run.course(config, problem, plan)
    if course.hours is not None and (counted := forecast.counted(course, config.train.steps, limit)):
        beside += [f"Time limit of a job: {limit.words}{counted}."]
    verdict.report(config, problem, plan, lengths=lengths, beside=beside)


def asked(stage: str, words: list[str], gpu: str | None, gib: float | None) -> tuple[DictConfig, "Shape", "Machine"]:
    """The run, its model and its GPU. Raises UserError for what the planner does not know."""
    from retool_mcore.planner import run
    from retool_mcore.planner.machine import find_machine
    from retool_mcore.planner.memory import GIB
    from retool_mcore.preflight.machine import gpu_names

    config = compose(stage, words)
    shape = run.shape_of(config)
    if config.parallel.device != "cuda" or shape is None:
        raise UserError(
            "The planner knows training on GPUs, of a model of our names or whose folder is here: add model=NAME or "
            "model.path=FOLDER, and a layout such as parallel=2x8-80g."
        )
    card = run.machine_of(config, gpu_names())
    if gpu or gib:
        card = find_machine(gpu or card.name.partition("-")[0], gib or card.memory / GIB)
    return config, shape, replace(card, gpus_per_node=config.parallel.gpus_per_node)


def problem_of(
    config: DictConfig, shape: "Shape", card: "Machine", run_of: Path | None, mean: int | None
) -> tuple["Problem", str]:
    """The run before the planner, and where its lengths are from."""
    from retool_mcore.planner import Batch, run

    problem = run.read(config, shape, card)
    if run_of is not None:
        return run.read(config, shape, card, measured(run_of)), f"those of {run_of}"
    if mean is None:
        return problem, "a third of the limit; --lengths-of RUN takes a run's own"
    known = Batch.spread(len(problem.batch.lengths), problem.batch.longest, mean)
    return run.read(config, shape, card, known), "--mean-length"


def measured(folder: Path) -> "Batch":
    """Prompt and response together, of the last trajectories of a run. Raises UserError when it has none."""
    from retool_mcore.planner import Batch

    records = recorded(folder, ["prompt_ids", "response_ids"])
    return Batch(tuple(len(record["prompt_ids"]) + len(record["response_ids"]) for record in records))


def recorded(folder: Path, columns: list[str]) -> list[dict]:
    """Columns of the trajectories of a run's last STEPS steps. Raises UserError when it has none."""
    from retool_mcore.metrics.records import read_step, step_files

    files = list(step_files(folder / "rl" / "trajectories").values())[-STEPS:]
    if not files:
        raise UserError(
            f"--lengths-of {folder}: there are no trajectories in it; give a run whose RL has ended a step."
        )
    return [record for file in files for record in read_step(file, columns=columns)]


def parse_gpus(gpus: str) -> tuple[int, int]:
    """(nodes, GPUs of a node) of NODESxGPUS or of a single number of GPUs in one node."""
    match = re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})", gpus.strip().lower())
    if not match:
        raise UserError(f"--gpus {gpus}: expected NODESxGPUS, as in 2x8.")
    return int(match[1] or 1), int(match[2])
