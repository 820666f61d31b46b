"""A run on other numbers of GPUs, simulated: its steps, what bounds them, and how much of the time failures leave."""

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from omegaconf import DictConfig, OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.planner import derived, run
from retool_mcore.planner.memory import BF16, stage_parameters
from retool_mcore.planner.rollout import PUSH_S
from retool_mcore.planner.search import Plan, Problem
from retool_mcore.planner.serving import Trajectory
from retool_mcore.planner.simulate import Order, Simulation

# Fitted to measured rows; all other rows of benchmarks.planner.simulation are predictions.
# The pass for log-probabilities divided by the planner's estimate: verl computes the entropy as well, and its trainer
# works around the pass. Fitted to two steps of stock verl on 4 x H200 (1.23 and 1.17 in
# benchmarks/results/plan_baseline.json).
LOG_PROBS_FACTOR = 1.2
# Seconds of a step outside its phases: advantages, mask audit, reading and writing rows. Fitted to step 3 of
# rl_step_again.json (31.7 s without its phases), which has 256 trajectories; more were not measured.
REST_S = 0.33

# Trajectories without a recorded run, as in benchmarks/rollout/live.py.
PROMPT_TOKENS = 300
OBSERVATION_TOKENS = 200

CORES_A_NODE = 112  # two sockets of a DGX H100 (data sheet); sandbox slots and rollout workers follow from it

# Weights to engines with GPUs of their own. Neither was measured with GPUs.
HOST_BYTES_S = 2.0e9  # gloo over TCP and host memory; a broadcast passes ceil(log2(ranks)) times through one link
NCCL_SHARE = 0.5  # share of a GPU's network bandwidth, after gathering on the first rank

# Llama 3 (arXiv 2407.21783, 3.3.4): 419 unexpected interruptions of 16,384 GPUs in 54 days.
MTBF_GPU_H = 50676
# Seconds until a fault is acted on: the longest of 32 (benchmarks/results/faults.json). A hang takes the watchdog's.
DETECT_S = 54
# Seconds to the first step of the 7B on 2 x H200, most of it imports (docs/measured/rollout.md). Reading a checkpoint
# takes as long as saving it, and comes on top.
RESTART_S = 330
FAILURES = 2000  # drawn for one estimate

Turns = tuple[list[tuple[float, float]], list[float]]  # as Trajectory has them


def resized(config: DictConfig, gpus: int, *, scale_batch: bool = False) -> DictConfig:
    """The run on so many GPUs: more nodes of the same kind, the trainer's and the engines' in proportion."""
    config = copy.deepcopy(config)
    keys = ["parallel.nodes", "pipeline.rollout_nodes", *(["train.batch", "train.mini_batch"] if scale_batch else [])]
    now = gpus_of(config)
    for key in keys:
        value = OmegaConf.select(config, key) * gpus
        if gpus < 1 or value % now:
            raise UserError(
                f"--gpus {gpus}: {key}={value // gpus} of the run's {now} GPUs does not become a whole number."
            )
        OmegaConf.update(config, key, value // now)
    return config


def gpus_of(config: DictConfig) -> int:
    """The trainer's, and those of separate engines."""
    own = config.pipeline.rollout_nodes * config.pipeline.rollout_gpus
    return config.parallel.nodes * config.parallel.gpus_per_node + own


def order_of(config: DictConfig, problem: Problem, plan: Plan) -> Order:
    """How the run's generation and training take turns."""
    pipeline, shape, own = config.pipeline, problem.shape, problem.own_gpus
    slots = derived.sizes(config, CORES_A_NODE)
    phases = {name: took for name, took in plan.seconds.items() if name not in ("generation", "push")}
    train = sum(phases.values()) + (LOG_PROBS_FACTOR - 1) * phases["log-probs"] + REST_S
    push = PUSH_S
    if own:
        size = BF16 * shape.parameters
        links = math.ceil(math.log2(1 + own)) / HOST_BYTES_S
        push = size * (links if pipeline.transport == "host" else 1 / (problem.machine.network * NCCL_SHARE))
        # verl puts the weights of the step's beginning back for each later mini-batch's log-probabilities.
        rank = max(stage_parameters(shape, plan.layout, stage) for stage in plan.layout.stages)
        train += 3 * (pipeline.updates - 1) * BF16 * rank / problem.machine.pcie
    return Order(
        group=config.train.n,
        slots=slots["sandbox.workers"] * slots["parallel.agent_workers"],
        train_s=train,
        push_s=push,
        updates=pipeline.updates,
        ahead=pipeline.staleness,
        colocated=own == 0,
        live=config.rollout.live,
    )


def drawn(
    config: DictConfig, problem: Problem, seed: int, calls: float, tool_s: float, recorded: Sequence[Turns] = ()
) -> Iterator[list[Trajectory]]:
    """Groups of trajectories, without end: of the problem's lengths, each as often as it is there, with `calls` of
    `tool_s` seconds, which are means of exponential distributions; or of those that were `recorded`."""
    draw = random.Random(seed)

    def made(length: int) -> Turns:
        count = min(config.rollout.max_turns, int(draw.expovariate(1 / calls))) if calls else 0
        inputs = [PROMPT_TOKENS] + [OBSERVATION_TOKENS] * count
        share = min(1.0, length / 2 / sum(inputs))  # a short one has short ones
        sampled = (length - share * sum(inputs)) / len(inputs)
        waits = [draw.expovariate(1 / tool_s) if tool_s else 0.0 for _ in range(count)]
        return [(share * tokens, sampled) for tokens in inputs], waits

    while True:
        lengths = list(problem.batch.lengths)
        draw.shuffle(lengths)
        trajectories = [draw.choice(recorded) if recorded else made(length) for length in lengths]
        for first in range(0, len(trajectories), config.train.n):
            yield [Trajectory(*turns) for turns in trajectories[first : first + config.train.n]]


@dataclass(frozen=True)
class Row:
    """A size of the run: seconds of a step and their parts, shares of the time."""

    gpus: int
    sequences: int
    step: float  # saves included
    parts: dict[
        str, float
    ]  # generation that the trainer waits for, training, push, save; tools: in which only they ran
    tokens: float  # a second and GPU
    again: float  # share of the tokens that turns send again and that are computed again
    age: tuple[float, int]  # staleness: mean, most
    ettr: float  # share of the time that is neither saving nor lost by failures
    bound: str  # the part that takes longest, and what of it does

    @property
    def speed(self) -> float:
        """Tokens a second that failures leave, of all GPUs."""
        return self.tokens * self.gpus * self.ettr * self.step / (self.step - self.parts["save"])


def row(
    config: DictConfig,
    problem: Problem,
    plan: Plan,
    order: Order,
    groups: Iterator[list[Trajectory]],
    steps: int,
    seed: int,
) -> Row:
    """Plays so many steps, after those in which the trajectories ahead are not yet what they will be."""
    gpus, engines = problem.world + problem.own_gpus, problem.engine_gpus // plan.rollout.tp
    simulation = Simulation(problem, plan, order, engines, groups)
    simulated = [simulation.step() for _ in range(steps + order.bound + (order.bound > 0))][-steps:]
    spent = {name: sum(step.spent[name] for step in simulated) for name in simulated[0].spent}
    waited, step_s = (
        sum(seconds) / steps for seconds in zip(*((step.waited, step.seconds) for step in simulated), strict=True)
    )
    save = run.save_seconds(problem, plan.layout)
    every = run.steps_between_saves(config, save, step_s)
    parts = {"generation": waited, "training": order.train_s, "push": order.push_s, "save": every and save / every}
    tools, again = spent["tools"] / engines / steps, spent["missed"] / max(spent["sent"], 1)
    ages = [age for step in simulated for age in step.staleness]
    bound = max(parts, key=lambda name: parts[name])
    if bound == "training":
        part = max(plan.update.parts, key=lambda name: plan.update.parts[name])
        bound += f": {part} {plan.update.parts[part] / plan.update.step:.0%}"
    elif bound == "generation" and tools > waited / 2:
        bound = "tools"
    elif bound == "generation":
        at_once = spent["running"] / steps / engines / (waited if order.colocated else step_s)
        bound += f": {again:.0%} computed again" if again > 0.1 else f": {at_once:.0f} at once an engine"
    return Row(
        gpus=gpus,
        sequences=len(problem.batch.lengths),
        step=step_s + parts["save"],
        parts=parts | {"tools": tools},
        tokens=sum(step.tokens for step in simulated) / steps / (step_s + parts["save"]) / gpus,
        again=again,
        age=(sum(ages) / len(ages), max(ages)),
        ettr=ettr(step_s, save, every, gpus, seed),
        bound=bound,
    )


def ettr(step_s: float, save: float, every: int, gpus: int, seed: int) -> float:
    """Return the share of the time whose steps are kept, with failures at random. A failure loses the steps since the
    last save, and takes until it is seen, the processes run again and the checkpoint is read."""
    draw, kept, wall = random.Random(seed), 0.0, 0.0
    for _ in range(FAILURES):
        ran = draw.expovariate(gpus / (3600 * MTBF_GPU_H))
        kept += ran // (every * step_s + save) * every * step_s
        wall += ran + DETECT_S + RESTART_S + save
    return kept / wall
