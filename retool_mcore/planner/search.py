"""Tries every layout of a model on a cluster: keeps what the checks accept and what fits, the quickest first."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.planner import flops, parallel, rollout
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import ENGINE_ASLEEP, GIB, Memory, memory, models, staying
from retool_mcore.planner.shape import Shape
from retool_mcore.planner.time import Time, log_prob_seconds, seconds

# Refusals without their numbers, to count them: a part of a message of parallel.py or layout.py, and its kind.
KINDS = {
    "attention heads": "tp does not divide the attention heads",
    "key/value heads": "tp does not fit the key/value heads",
    "vocabulary": "tp does not divide the vocabulary",
    "experts": "ep does not divide the experts or the ranks",
    "layers": "pp does not divide the layers",
    "data-parallel": "fewer sequences than data-parallel ranks",
}
MICRO_BATCHES = (1, 1.5, 2, 4)  # of the longest sequence
OFFLOADS = ((False, False), (False, True), (True, True))  # parameters and gradients, optimizer
TOKEN_MULTIPLE = 512
NEAR = 1.035  # the mean error of predicted seconds over 23 measured rows (benchmarks/planner/predictions.py)
ERROR = 0.03  # of the predicted memory: the largest of 41 measured rows was 2.4 % (benchmarks/planner/predictions.py)


@dataclass(frozen=True)
class Problem:
    """A planning problem. `rl`: vLLM shares the GPUs and a step is generation, log-probs, update and push."""

    shape: Shape
    nodes: int
    machine: Machine
    batch: Batch  # of a step
    rl: bool = True
    base: Layout = Layout(fused_swiglu=True, fused_rope=True)  # what every layout has, as its switches
    updates: int = 1  # optimizer steps, which share the batch
    beside: tuple[str, ...] = ()  # models next to the policy: critic, reference
    max_num_seqs: int = 256  # trajectories that a replica of vLLM works at
    log_probs_every: int = 1  # steps from one pass for old log-probabilities to the next
    own_gpus: int = 0  # of vLLM, which generates during the training; 0: they take turns on the trainer's

    @cached_property
    def update_batch(self) -> Batch:
        """Return the batch of one optimizer step."""
        return self.batch if self.updates == 1 else self.batch.sample(len(self.batch.lengths) // self.updates)

    @property
    def room(self) -> float:
        """Bytes that an update may be predicted to take: so that it fits where the prediction is that much too low."""
        return self.machine.memory * (1 - rollout.MARGIN) / (1 + ERROR)

    @property
    def world(self) -> int:
        return self.nodes * self.machine.gpus_per_node

    @property
    def engine_gpus(self) -> int:
        return self.own_gpus or self.world

    @cached_property
    def engine_sizes(self) -> list[int]:
        """Tensor-parallel sizes of a vLLM replica that the checks accept and that the batch keeps busy."""

        def accepted(tp: int) -> bool:
            try:
                parallel.check_rollout_layout(self.shape, gpus_per_node=self.machine.gpus_per_node, rollout_tp=tp)
            except UserError:
                return False
            return self.engine_gpus // tp <= len(self.batch.lengths)

        return [tp for tp in range(1, self.machine.gpus_per_node + 1) if accepted(tp)]


@dataclass(frozen=True)
class Plan:
    """A layout that fits. `seconds`: of the phases of a step."""

    layout: Layout
    memory: Memory
    update: Time
    rollout: rollout.Rollout | None
    seconds: dict[str, float]
    gpu_bytes: float  # all that is on the GPU at the update's peak
    there: float = 0.0  # of it, what the trainer leaves there while vLLM generates
    beside: bool = False  # vLLM generates while the trainer trains

    @property
    def step(self) -> float:
        generation = self.seconds.get("generation", 0.0) * self.beside
        return max(generation, sum(self.seconds.values()) - generation)


@dataclass
class Found:
    plans: list[Plan]  # the quickest first
    refused: Counter[str] = field(default_factory=Counter)  # why layouts were dropped, and how many
    closest: float = float("inf")  # bytes of the smallest update that did not fit

    @property
    def tried(self) -> int:
        return len(self.plans) + self.refused.total()

    @property
    def chosen(self) -> Plan:
        """The simplest of those that are within NEAR of the quickest: the prediction cannot tell them apart."""
        near = [plan for plan in self.plans if plan.step <= self.plans[0].step * NEAR]
        return min(near, key=lambda plan: (plan.layout.mechanisms, plan.gpu_bytes, plan.step))

    def shown(self, top: int) -> list[Plan]:
        """The chosen, then the quickest of every other division into TP, PP and CP."""
        best: dict[tuple[int, int, int], Plan] = {}
        for plan in [self.chosen, *self.plans]:
            best.setdefault((plan.layout.tp, plan.layout.pp, plan.layout.cp), plan)
        return list(best.values())[:top]


def search(problem: Problem) -> Found:
    """Every layout that fits, by the seconds of a step. Raises UserError when none fits, saying what came closest."""
    result = Found([])
    for layout in candidates(problem, result.refused):
        held = memory(problem.shape, layout, problem.update_batch)
        on_gpu = update_bytes(problem, layout, held)
        if on_gpu > problem.room:
            result.refused["the update does not fit"] += 1
            result.closest = min(result.closest, on_gpu)
        elif plan := quickest(problem, layout, held):
            result.plans.append(plan)
        else:
            result.refused["vLLM does not fit in what the trainer leaves on the GPU"] += 1
    if not result.plans:
        raise UserError(_nothing_fits(problem, result))
    result.plans.sort(key=lambda plan: (plan.step, plan.gpu_bytes))
    return result


def update_bytes(problem: Problem, layout: Layout, held: Memory) -> float:
    """All that is on the GPU at the peak of an update, with vLLM asleep and other models moved away or there."""
    bytes_of = models(problem.shape, layout, held.stage)
    asleep = ENGINE_ASLEEP if problem.rl and not problem.own_gpus else 0.0
    return held.gpu + asleep + sum(staying(bytes_of[name], layout) for name in problem.beside)


def candidates(problem: Problem, refused: Counter[str]) -> Iterator[Layout]:
    """Layouts that the checks of a run would accept; counts in `refused` why others are not."""
    world = {"nodes": problem.nodes, "gpus_per_node": problem.machine.gpus_per_node}
    for sizes in _groups(problem):
        try:
            dp = parallel.check_layout(problem.shape, **world, **sizes, sequence_parallel=sizes["tp"] > 1)
            problem.update_batch.share(dp)
        except UserError as error:
            refused[next((kind for part, kind in KINDS.items() if part in str(error)), str(error))] += 1
            continue
        for vpp in _chunks(problem.shape.layers, sizes["pp"]):
            for layout in _variants(problem, replace(problem.base, **sizes, vpp=vpp, dp=dp)):
                try:
                    problem.update_batch.micro_batches(layout)
                except UserError:
                    refused["too few sequences for the pipeline's groups of micro-batches"] += 1
                    continue
                yield layout


def _groups(problem: Problem) -> Iterator[dict[str, Any]]:
    """tp, pp, cp and ep; tensor and expert parallelism stay inside a node's NVLink."""
    sizes = [size for size in range(1, problem.world + 1) if problem.world % size == 0]
    nodes = [size for size in sizes if problem.machine.gpus_per_node % size == 0]
    for tp, pp, cp, ep in itertools.product(nodes, sizes, sizes, nodes if problem.shape.experts else (1,)):
        if problem.world % (tp * pp * cp) == 0:
            yield {"tp": tp, "pp": pp, "cp": cp, "ep": ep}


def _chunks(layers: int, pp: int) -> Iterator[int]:
    """Numbers of chunks that a pipeline rank's layers can be cut into: at least two layers each."""
    yield 1
    if pp > 1:
        yield from (vpp for vpp in (2, 4, 8) if layers % (pp * vpp) == 0 and layers // (pp * vpp) >= 2)


def _variants(problem: Problem, base: Layout) -> Iterator[Layout]:
    tokens = (-(-round(factor * problem.batch.longest) // base.cp) for factor in MICRO_BATCHES)
    budgets = dict.fromkeys(-(-count // TOKEN_MULTIPLE) * TOKEN_MULTIPLE for count in tokens)
    left_out = ("selective", "mlp") if problem.shape.lora else ("mlp",) if problem.shape.experts else ()
    kinds = [kind for kind in flops.RECOMPUTE if kind not in left_out]
    for budget, recompute, offload in itertools.product(budgets, kinds, OFFLOADS if problem.rl else OFFLOADS[:1]):
        kept = dict(zip(("param_offload", "optimizer_offload"), offload, strict=True))
        yield replace(base, micro_batch_tokens=budget, recompute=recompute, **kept)


def there(problem: Problem, layout: Layout, held: Memory) -> float:
    """Bytes of the trainer on vLLM's GPUs."""
    return 0.0 if problem.own_gpus else rollout.resident(problem.shape, layout, held, problem.beside)


def quickest(problem: Problem, layout: Layout, held: Memory) -> Plan | None:
    """The layout with its times, and for RL with the quickest vLLM that fits; None when none does."""
    if not problem.rl:
        return planned(problem, layout, held, None)
    shape, machine, left = problem.shape, problem.machine, there(problem, layout, held)
    engines = [
        engine
        for tp in problem.engine_sizes
        for engine in [rollout.fit(shape, machine, tp, left, problem.max_num_seqs)]
        if not rollout.lacks(shape, layout, machine, engine, left, problem.batch.longest)
    ]
    if not engines:
        return None
    return planned(problem, layout, held, min(engines, key=lambda engine: generation(problem, engine)))


def generation(problem: Problem, engine: rollout.Rollout, batch: Batch | None = None) -> float:
    """Seconds, of a step's batch or another."""
    arguments = problem.shape, engine, batch or problem.batch, problem.machine
    return rollout.generation_seconds(*arguments, world=problem.engine_gpus)


def refusal(problem: Problem, plan: Plan) -> str | None:
    """Why a plan does not fit, in words; None: it does."""
    memory = problem.machine.memory / GIB
    if plan.gpu_bytes > problem.room:
        needed, least = plan.gpu_bytes / GIB, problem.room / GIB
        return f"the update takes {needed:.1f} of {memory:.1f} GiB and should take at most {least:.1f}"
    if plan.rollout is None:
        return None
    shape, machine, longest = problem.shape, problem.machine, problem.batch.longest
    return rollout.lacks(shape, plan.layout, machine, plan.rollout, plan.there, longest)


def planned(problem: Problem, layout: Layout, held: Memory, engine: rollout.Rollout | None) -> Plan:
    """The layout with that vLLM, None in SFT, whether it fits or not."""
    shape, machine, batch = problem.shape, problem.machine, problem.update_batch
    update = seconds(shape, layout, batch, machine)
    on_gpu = update_bytes(problem, layout, held)
    if engine is None:
        return Plan(layout, held, update, None, {"update": update.step * problem.updates}, on_gpu)
    forward = log_prob_seconds(shape, layout, batch, machine) * problem.updates
    phases = {"generation": generation(problem, engine), "log-probs": forward / problem.log_probs_every}
    phases |= {"reference": forward} if "reference" in problem.beside else {}
    trained = update.step * problem.updates
    phases |= {"critic": forward + trained} if "critic" in problem.beside else {}
    phases |= {"update": trained, "push": rollout.PUSH_S}
    left = there(problem, layout, held)
    return Plan(layout, held, update, engine, phases, on_gpu, left, beside=problem.own_gpus > 0)


def model_tflops(problem: Problem, plan: Plan) -> float:
    """Model TFLOP/s a GPU of the update."""
    return flops.model_flops(problem.shape, problem.batch.lengths) / problem.world / plan.seconds["update"] / 1e12


def _nothing_fits(problem: Problem, found: Found) -> str:
    memory = problem.machine.memory / GIB
    where = f"{problem.nodes} x {problem.machine.gpus_per_node} GPUs of {memory:.0f} GiB"
    if found.closest < float("inf"):
        advice = f"the update that came closest needs {found.closest / GIB:.1f} GiB on each: take more GPUs"
    else:
        advice = "; ".join(f"{reason} ({count})" for reason, count in found.refused.most_common())
    return f"no layout of this model fits {where}: {advice}, or lower --max-length."
