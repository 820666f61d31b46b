"""Tries every layout of a model on a cluster: keeps what the checks accept and what fits, the quickest first."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.planner import flops, parallel, rollout
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import GIB, Memory, memory
from retool_mcore.planner.shape import Model, Shape
from retool_mcore.planner.time import Time, log_prob_seconds, seconds

MICRO_BATCHES = (1, 1.5, 2, 4)  # of the longest sequence
RECOMPUTE = ("none", "selective", "mlp", "full")
OFFLOADS = ((False, False), (False, True), (True, True))  # parameters and gradients, optimizer
TOKEN_MULTIPLE = 512
NEAR = 1.02


@dataclass(frozen=True)
class Problem:
    """What is to be planned. `rl`: vLLM shares the GPUs and a step is generation, log-probs, update and push."""

    shape: Shape
    nodes: int
    machine: Machine
    batch: Batch
    rl: bool = True
    base: Layout = Layout(fused_swiglu=True, fused_rope=True)  # what every layout has, as its switches

    @property
    def world(self) -> int:
        return self.nodes * self.machine.gpus_per_node

    @cached_property
    def model(self) -> Model:
        """The shape as the checks of a layout take it."""
        shape = self.shape
        return Model(
            folder=Path(),
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            layers=shape.layers,
            vocab=shape.vocab,
            max_positions=self.batch.longest,
            parameters=shape.parameters,
            experts=shape.experts,
        )

    @cached_property
    def engine_sizes(self) -> list[int]:
        """Tensor-parallel sizes of a vLLM replica that the checks accept and that the batch keeps busy."""

        def accepted(tp: int) -> bool:
            try:
                parallel.check_rollout_layout(self.model, gpus_per_node=self.machine.gpus_per_node, rollout_tp=tp)
            except UserError:
                return False
            return self.world // tp <= len(self.batch.lengths)

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

    @property
    def step(self) -> float:
        return sum(self.seconds.values())


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
    found = Found([])
    for layout in candidates(problem, found.refused):
        held = memory(problem.shape, layout, problem.batch)
        on_gpu = rollout.update_bytes(held) if problem.rl else held.gpu
        if on_gpu > problem.machine.memory * (1 - rollout.MARGIN):
            found.refused["the update does not fit"] += 1
            found.closest = min(found.closest, on_gpu)
        elif plan := _planned(problem, layout, held, on_gpu):
            found.plans.append(plan)
        else:
            found.refused["vLLM does not fit beside what the trainer leaves on the GPU"] += 1
    if not found.plans:
        raise UserError(_nothing_fits(problem, found))
    found.plans.sort(key=lambda plan: (plan.step, plan.gpu_bytes))
    return found


def candidates(problem: Problem, refused: Counter[str]) -> Iterator[Layout]:
    """Layouts that the checks of a run would accept; counts in `refused` why others are not."""
    for tp, pp, cp, ep in _groups(problem):
        try:
            dp = parallel.check_layout(
                problem.model,
                nodes=problem.nodes,
                gpus_per_node=problem.machine.gpus_per_node,
                tp=tp,
                pp=pp,
                cp=cp,
                ep=ep,
                sequence_parallel=tp > 1,
            )
            problem.batch.share(dp)
        except UserError as error:
            refused[_kind(str(error))] += 1
            continue
        for vpp in _chunks(problem.shape.layers, pp):
            for layout in _variants(problem, replace(problem.base, tp=tp, pp=pp, vpp=vpp, cp=cp, dp=dp, ep=ep)):
                try:
                    problem.batch.micro_batches(layout)
                except UserError:
                    refused["too few sequences for the pipeline's groups of micro-batches"] += 1
                    continue
                yield layout


def _groups(problem: Problem) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, cp, ep); tensor and expert parallelism stay inside a node's NVLink."""
    sizes = [size for size in range(1, problem.world + 1) if problem.world % size == 0]
    nodes = [size for size in sizes if problem.machine.gpus_per_node % size == 0]
    for tp in nodes:
        for pp in sizes:
            for cp in sizes:
                if tp * pp * cp <= problem.world and problem.world % (tp * pp * cp) == 0:
                    for ep in nodes if problem.shape.experts else (1,):
                        yield tp, pp, cp, ep


def _chunks(layers: int, pp: int) -> Iterator[int]:
    """Numbers of chunks that a pipeline rank's layers can be cut into: at least two layers each."""
    yield 1
    if pp > 1:
        yield from (vpp for vpp in (2, 4, 8) if layers % (pp * vpp) == 0 and layers // (pp * vpp) >= 2)


def _variants(problem: Problem, base: Layout) -> Iterator[Layout]:
    longest = problem.batch.longest
    seen = set()
    for factor in MICRO_BATCHES:
        tokens = -(-round(factor * longest) // base.cp)
        tokens = -(-tokens // TOKEN_MULTIPLE) * TOKEN_MULTIPLE
        parallel.check_micro_batch(longest=longest, micro_batch_tokens=tokens, cp=base.cp)
        if tokens in seen:
            continue
        seen.add(tokens)
        for recompute in (kind for kind in RECOMPUTE if kind != "mlp" or not problem.shape.experts):
            for params, optimizer in OFFLOADS if problem.rl else OFFLOADS[:1]:
                yield replace(
                    base,
                    recompute=recompute,
                    param_offload=params,
                    optimizer_offload=optimizer,
                    micro_batch_tokens=tokens,
                )


def _planned(problem: Problem, layout: Layout, held: Memory, on_gpu: float) -> Plan | None:
    """The layout with its times, and for RL with the quickest vLLM that fits; None when none does."""
    shape, machine, batch = problem.shape, problem.machine, problem.batch
    if not problem.rl:
        update = seconds(shape, layout, batch, machine)
        return Plan(layout, held, update, None, {"update": update.step}, on_gpu)
    engines = [
        engine
        for tp in problem.engine_sizes
        if (engine := rollout.fit(shape, layout, held, machine, tp, batch.longest)) is not None
    ]
    if not engines:
        return None

    def generation(engine: rollout.Rollout) -> float:
        return rollout.generation_seconds(shape, engine, batch, machine, world=problem.world)

    engine = min(engines, key=generation)
    update = seconds(shape, layout, batch, machine)
    phases = {
        "generation": generation(engine),
        "log-probs": log_prob_seconds(shape, layout, batch, machine),
        "update": update.step,
        "push": rollout.PUSH_S,
    }
    return Plan(layout, held, update, engine, phases, on_gpu)


def model_tflops(problem: Problem, plan: Plan) -> float:
    """Model TFLOP/s a GPU of the update."""
    return flops.model_flops(problem.shape, problem.batch.lengths) / problem.world / plan.seconds["update"] / 1e12


def _kind(message: str) -> str:
    """A refusal without its numbers, to be counted."""
    for part, kind in (
        ("attention heads", "tp does not divide the attention heads"),
        ("key/value heads", "tp does not fit the key/value heads"),
        ("vocabulary", "tp does not divide the vocabulary"),
        ("experts", "ep does not divide the experts or the ranks"),
        ("layers", "pp does not divide the layers"),
        ("data-parallel", "fewer sequences than data-parallel ranks"),
    ):
        if part in message:
            return kind
    return message


def _nothing_fits(problem: Problem, found: Found) -> str:
    memory = problem.machine.memory / GIB
    where = f"{problem.nodes} x {problem.machine.gpus_per_node} GPUs of {memory:.0f} GiB"
    if found.closest < float("inf"):
        advice = f"the update that came closest needs {found.closest / GIB:.1f} GiB on each: take more GPUs"
    else:
        advice = "; ".join(f"{reason} ({count})" for reason, count in found.refused.most_common())
    return f"no layout of this model fits {where}: {advice}, or lower --max-length."
