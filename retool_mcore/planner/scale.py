"""A run on other numbers of GPUs, simulated: its steps, what bounds them, and how much of the time failures leave."""

import copy
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.planner import derived, run
from retool_mcore.planner.memory import BF16, stage_parameters
from retool_mcore.planner.rollout import PUSH_S
from retool_mcore.planner.search import Plan, Problem
from retool_mcore.planner.serving import Trajectory
from retool_mcore.planner.simulate import Order, Simulation, Step
from retool_mcore.tables import yaml_beside

ASSUMED = yaml_beside(__file__)
Turns = tuple[list[tuple[float, float]], list[float]]  # as Trajectory has them


@dataclass(frozen=True)
class Tools:
    """Of trajectories that are made up: calls of a trajectory and seconds of one, on average."""

    calls: float = ASSUMED["calls"]
    seconds: float = ASSUMED["tool_s"]


def resized(config: DictConfig, gpus: int, *, scale_batch: bool = False) -> DictConfig:
    """The run on so many GPUs: more nodes of the same kind, the trainer's and the engines' in proportion."""
    config = copy.deepcopy(config)
    keys = ["parallel.nodes", "pipeline.rollout_nodes", *(["train.batch", "train.mini_batch"] if scale_batch else [])]
    now = config.parallel.nodes * config.parallel.gpus_per_node
    now += config.pipeline.rollout_nodes * config.pipeline.rollout_gpus
    for key in keys:
        value = OmegaConf.select(config, key) * gpus
        if gpus < 1 or value % now:
            raise UserError(
                f"--gpus {gpus}: {key}={value // gpus} of the run's {now} GPUs does not become a whole number."
            )
        OmegaConf.update(config, key, value // now)
    return config


def order_of(config: DictConfig, problem: Problem, plan: Plan, partial: float = 0.0) -> Order:
    """How the run's generation and training take turns. partial: with GPUs that take turns, by which share of a batch
    more prompts are at work than a step needs; what is unfinished goes on in the next step, which no configuration
    has."""
    pipeline, shape, own = config.pipeline, problem.shape, problem.own_gpus
    slots = derived.sizes(config, ASSUMED["cores_a_node"])
    phases = {name: took for name, took in plan.seconds.items() if name not in ("generation", "push")}
    train = sum(phases.values()) + (ASSUMED["log_probs"] - 1) * phases["log-probs"] + ASSUMED["rest_s"]
    ahead, push = partial, PUSH_S
    if own:
        ahead, size = pipeline.staleness, BF16 * shape.parameters
        links = math.ceil(math.log2(1 + own)) / ASSUMED["host_bytes_s"]
        push = size * (links if pipeline.transport == "host" else 1 / (problem.machine.network * ASSUMED["nccl_share"]))
        # verl puts the weights of the step's beginning back for each later mini-batch's log-probabilities.
        rank = max(stage_parameters(shape, plan.layout, stage) for stage in plan.layout.stages)
        train += 3 * (pipeline.updates - 1) * BF16 * rank / problem.machine.pcie
    return Order(
        group=config.train.n,
        slots=slots["sandbox.workers"] * slots["parallel.agent_workers"],
        train_s=train,
        push_s=push,
        updates=pipeline.updates,
        ahead=ahead,
        bound=math.ceil(ahead),
        colocated=own == 0,
        live=config.rollout.live,
    )


def drawn(
    problem: Problem, group: int, most: int, seed: int, tools: Tools = Tools(), recorded: Sequence[Turns] = ()
) -> Iterator[list[Trajectory]]:
    """Groups of trajectories, without end: of the problem's lengths, each as often as it is there, with up to `most`
    calls, exponentially distributed as their seconds are; or of those that were `recorded`."""
    draw = random.Random(seed)
    while True:
        lengths = list(problem.batch.lengths)
        draw.shuffle(lengths)
        made = [draw.choice(recorded) if recorded else _made(draw, length, most, tools) for length in lengths]
        for first in range(0, len(made), group):
            yield [Trajectory(*turns) for turns in made[first : first + group]]


def _made(draw: random.Random, length: int, most: int, tools: Tools) -> Turns:
    calls = min(most, int(draw.expovariate(1 / tools.calls))) if tools.calls else 0
    given = [ASSUMED["prompt_tokens"]] + [ASSUMED["observation_tokens"]] * calls
    share = min(1.0, length / 2 / sum(given))  # a short one has short ones
    sampled = (length - share * sum(given)) / len(given)
    waits = [draw.expovariate(1 / tools.seconds) if tools.seconds else 0.0 for _ in range(calls)]
    return [(share * tokens, sampled) for tokens in given], waits


def played(
    problem: Problem, plan: Plan, order: Order, groups: Iterator[list[Trajectory]], steps: int = 2
) -> list[Step]:
    """So many steps, after those in which the trajectories ahead are not yet what they will be."""
    simulation = Simulation(problem, plan, order, problem.engine_gpus // plan.rollout.tp, groups)
    return [simulation.step() for _ in range(steps + order.bound + (order.bound > 0))][-steps:]


@dataclass(frozen=True)
class Row:
    """A size of the run: seconds of a step and their parts, shares of the time."""

    gpus: int
    sequences: int
    step: float  # saves included
    parts: dict[str, float]  # generation that is waited for, training, push, save; tools: in which only they ran
    tokens: float  # a second and GPU
    again: float  # share of the tokens that turns send again and that are computed again
    staleness: tuple[float, int]  # mean, most
    ettr: float  # share of the time that is neither saving nor lost by failures
    bound: str

    @property
    def speed(self) -> float:
        """Tokens a second that failures leave, of all GPUs."""
        return self.tokens * self.gpus * self.ettr * self.step / (self.step - self.parts["save"])


def row(config: DictConfig, problem: Problem, plan: Plan, order: Order, steps: Sequence[Step], seed: int) -> Row:
    gpus, count = problem.world + problem.own_gpus, len(steps)
    engines = problem.engine_gpus // plan.rollout.tp
    seconds = sum(step.seconds for step in steps) / count
    spent = sum((step.spent for step in steps), Counter())
    save = run.save_seconds(problem, plan.layout)
    every = run.steps_between_saves(config, save, seconds)
    parts = {"generation": sum(step.waited for step in steps) / count, "training": order.train_s}
    parts |= {"push": order.push_s, "save": save / every if every else 0.0}
    stale = [age for step in steps for age in step.staleness]
    again = spent["missed"] / max(spent["sent"], 1)
    at_once = spent["running"] / count / engines / (parts["generation"] if order.colocated else seconds)
    return Row(
        gpus=gpus,
        sequences=len(problem.batch.lengths),
        step=seconds + parts["save"],
        parts=parts | {"tools": spent["tools"] / engines / count},
        tokens=sum(step.tokens for step in steps) / count / (seconds + parts["save"]) / gpus,
        again=again,
        staleness=(sum(stale) / len(stale), max(stale)),
        ettr=ettr(seconds, save, every, gpus, seed),
        bound=bound(plan, parts, spent["tools"] / engines / count, again, at_once),
    )


def bound(plan: Plan, parts: Mapping[str, float], tools: float, again: float, at_once: float) -> str:
    """The part that takes longest, and what of it does. at_once: trajectories that an engine runs, on average."""
    first = max(parts, key=lambda name: parts[name])
    if first == "training":
        update = plan.update
        first = max(update.parts, key=lambda name: update.parts[name])
        return f"training: {first} {update.parts[first] / update.step:.0%}"
    if first != "generation":
        return first
    if tools > parts["generation"] / 2:
        return "tools"
    return f"KV cache: {again:.0%} read in again" if again > 0.1 else f"generation: {at_once:.0f} at once an engine"


def ettr(step: float, save: float, every: int, gpus: int, seed: int) -> float:
    """Of the time with failures at random: the share of steps that are kept. A failure loses the steps since the last
    save, and takes until it is seen, the processes are there again and the checkpoint is read."""
    draw, kept, wall = random.Random(seed), 0.0, 0.0
    for _ in range(ASSUMED["failures"]):
        ran = draw.expovariate(gpus / (3600 * ASSUMED["mtbf_gpu_h"]))
        kept += ran // (every * step + save) * every * step
        wall += ran + ASSUMED["detect_s"] + ASSUMED["restart_s"] + save
    return kept / wall
