"""A run's configuration before the planner: what its steps are, whether they fit, how long they and the run take."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.parquet as parquet
from omegaconf import DictConfig, OmegaConf

from retool_mcore.planner import parallel, rollout
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import GPUS, MACHINES, Machine
from retool_mcore.planner.memory import BF16, memory, optimizer_bytes, trained_parameters
from retool_mcore.planner.search import Plan, Problem, generation, planned
from retool_mcore.planner.settings import checked_layout, switches
from retool_mcore.planner.shape import SHAPES, Shape

MEAN_SHARE = 1 / 3  # of the longest sequence, where nothing tells the mean
WRITTEN = 1.1e9  # bytes/s of a checkpoint that one rank writes to a disk that keeps up: docs/measured/cluster.md
SAVING_SHARE = 0.05  # of the time, which saves by the clock take at most (state/schedule.py)


def shape_of(config: DictConfig) -> Shape | None:
    """Return the shape of the folder model.path, or of a name of SHAPES; None where there is neither. Raises UserError
    for a folder of another architecture."""
    path = str(OmegaConf.select(config, "model.path"))
    return Shape.from_hf(path) if Path(path).is_dir() else SHAPES.get(str(config.model.name))


def machine_of(config: DictConfig, here: Sequence[str] = ()) -> Machine:
    """The GPU that is `here`, by its name, else the one that parallel.gpu names, else an H100."""
    known = [machine for line in here for name, machine in GPUS.items() if name in line]
    chosen = known[0] if known else MACHINES[config.parallel.gpu or "H100-80"]
    return replace(chosen, gpus_per_node=config.parallel.gpus_per_node)


def read(config: DictConfig, shape: Shape, machine: Machine, batch: Batch | None = None) -> Problem:
    """Return the planner's problem for a stage `sft` or `rl`. `batch`: lengths that are known; None: spread to the
    limits."""
    train, rl, shape = config.train, "n" in config.train, shape.adapted(config)
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens if rl else train.max_length
    sequences = train.batch * (train.n if rl else 1)
    if batch is None:
        batch = Batch.spread(sequences, longest, longest * MEAN_SHARE)
    else:  # a response ends at the limit
        batch = Batch(tuple(min(length, longest) for length in batch.lengths), longest).sample(sequences)
    base = Layout(**switches(config.parallel.megatron))
    common = shape, config.parallel.nodes, machine, batch, rl, base
    if not rl:
        return Problem(*common)
    others = {"critic": config.recipe.advantage == "gae", "reference": config.recipe.kl_loss}
    return Problem(
        *common,
        updates=train.batch // train.mini_batch,
        beside=tuple(name for name, there in others.items() if there),
        own_gpus=0 if config.pipeline.hybrid else config.pipeline.rollout_nodes * config.pipeline.rollout_gpus,
        max_num_seqs=config.parallel.max_num_seqs,
        log_probs_every=config.correction.log_probs_every,
    )


def present(config: DictConfig, problem: Problem) -> Plan:
    """The layout of the configuration, whether it fits or not. Raises UserError when it does not divide the model."""
    group, shape = config.parallel, problem.shape
    layout = checked_layout(shape, group)
    tokens = layout.micro_batch_tokens
    parallel.check_micro_batch(longest=problem.batch.longest, micro_batch_tokens=tokens, cp=layout.cp)
    engine = None
    if problem.rl:
        parallel.check_rollout_layout(shape, gpus_per_node=group.gpus_per_node, rollout_tp=group.rollout_tp)
        share = (group.rollout_tp, group.gpu_memory_utilization, group.max_num_seqs)
        engine = rollout.engine(shape, problem.machine, *share)
    return planned(problem, layout, memory(shape, layout, problem.update_batch), engine)


@dataclass(frozen=True)
class Course:
    """A run over its steps. Seconds but for `hours`, which are None where the configuration does not say how many."""

    step: float  # without saves and validations
    save: float  # that a save holds up the step
    between: float  # from one save to the next; 0: none
    validation: float  # of one
    hours: float | None


def course(config: DictConfig, problem: Problem, plan: Plan) -> Course:
    train = config.train
    save = save_seconds(problem, plan.layout)
    every = steps_between_saves(config, save, plan.step)
    samples = validation_samples(config)
    before = bool(train.get("eval_before"))
    validation = 0.0
    if plan.rollout and (train.eval_every > 0 or before) and samples >= 1:
        validation = generation(problem, plan.rollout, problem.batch.sample(samples))
    hours = None
    if train.steps:
        saves = train.steps // every if every else 0
        validations = before + (train.steps // train.eval_every if train.eval_every > 0 else 0)
        hours = (train.steps * plan.step + saves * save + validations * validation) / 3600
    return Course(plan.step, save, every * plan.step, validation, hours)


def validation_samples(config: DictConfig) -> int:
    """Trajectories of one validation: of the problems that the data set holds back, and of the evaluation set."""
    data, train = config.data, config.train
    held_back = OmegaConf.select(data, "held_back") or OmegaConf.select(data, "arithmetic.held_back") or 0
    count = int(held_back) * train.get("eval_samples", 0) if held_back >= 1 else 0
    if "evaluation" in (train.get("eval_sets") or ()):
        count += evaluation_problems(config) * train.evaluation.samples
    return count


def evaluation_problems(config: DictConfig) -> int:
    """Rows of data.validation_files, or where they are not prepared here what the data set's configuration says."""
    files = config.data.validation_files
    there = [file for file in map(Path, [files] if isinstance(files, str) else files) if file.is_file()]
    if there:
        return sum(parquet.read_metadata(file).num_rows for file in there)
    return OmegaConf.select(config, "data.evaluation") or OmegaConf.select(config, "data.arithmetic.validation") or 0


def steps_between_saves(config: DictConfig, save: float, step: float) -> int:
    """0: none is saved. save, step: seconds of one."""
    train = config.train
    if train.save_every < 1 or train.save_minutes is None:
        return max(train.save_every, 0)
    return min(train.save_every, math.ceil(max(60 * train.save_minutes, save / SAVING_SHARE) / step))


def save_seconds(problem: Problem, layout: Layout) -> float:
    """Return the seconds that a save takes on the rank with most to write: its share of the optimizer, and the whole
    model's weights, which the first rank gathers."""
    parameters = max(trained_parameters(problem.shape, layout, stage) for stage in layout.stages)
    size = optimizer_bytes(problem.shape, layout, parameters) + BF16 * problem.shape.parameters
    return size * (1 + ("critic" in problem.beside)) / WRITTEN
