"""The first changes to make to a layout: the search over its neighbours, which differ in one thing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from retool_mcore.errors import UserError
from retool_mcore.planner import rollout
from retool_mcore.planner.layout import Layout
from retool_mcore.planner.memory import memory
from retool_mcore.planner.search import NEAR, Plan, Problem, candidates, planned, refusal, search, there
from retool_mcore.planner.settings import overrides

MOST = 3
ALIKE = 1.005  # of two neighbours this near, the one with fewer words is reported


@dataclass(frozen=True)
class Change:
    words: list[str]  # overrides of the command line
    before: Plan
    after: Plan


def changes(problem: Problem, plan: Plan) -> list[Change]:
    """Up to MOST, each on top of those before it and quicker than what a prediction cannot tell apart.

    Of a layout that does not fit the first makes it fit; where no neighbour does, it is the search's choice.
    """
    chosen: list[Change] = []
    while len(chosen) < MOST:
        near = sorted(neighbours(problem, plan), key=lambda other: other.step)
        if refusal(problem, plan) is None:
            near = [other for other in near if other.step * NEAR < plan.step]
        elif not near:
            try:
                near = [search(problem).chosen]
            except UserError:
                return chosen
        if not near:
            return chosen
        alike = [other for other in near if other.step <= near[0].step * ALIKE]
        best = min(alike, key=lambda other: (len(words(plan, other)), other.step))
        chosen.append(Change(words(plan, best), plan, best))
        plan = best
    return chosen


def neighbours(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """All that fit and differ in vLLM's TP, share or sequences, in the division into ranks, in what is recomputed or
    offloaded, or in the micro-batch; with another layout vLLM may take what that one leaves."""
    for layout in {plan.layout: None, **dict.fromkeys(layouts_near(problem, plan.layout))}:
        held = memory(problem.shape, layout, problem.update_batch)
        for engine in _engines(problem, plan, layout, there(problem, layout, held)):
            other = planned(problem, layout, held, engine)
            if words(plan, other) and refusal(problem, other) is None:
                yield other


def layouts_near(problem: Problem, layout: Layout) -> Iterator[Layout]:
    slots = layout.micro_batch_tokens * layout.cp
    for other in candidates(problem, Counter()):
        same = replace(other, micro_batch_tokens=-(-slots // other.cp))
        differs = [
            any(getattr(other, size) != getattr(layout, size) for size in ("tp", "pp", "vpp", "cp", "dp", "ep")),
            other.recompute != layout.recompute,
            (other.param_offload, other.optimizer_offload) != (layout.param_offload, layout.optimizer_offload),
        ]
        if sum(differs) < 2:
            yield same if any(differs) else other


def _engines(problem: Problem, plan: Plan, layout: Layout, left: float) -> Iterator[rollout.Rollout | None]:
    if plan.rollout is None:
        yield None
        return
    now, limits = plan.rollout, (problem.shape, problem.machine)
    yield rollout.engine(*limits, now.tp, now.utilisation, now.max_num_seqs)
    yield rollout.fit(*limits, now.tp, left, now.max_num_seqs)
    if layout == plan.layout:
        for tp in problem.engine_sizes:
            yield rollout.engine(*limits, tp, now.utilisation, now.max_num_seqs)
        yield rollout.engine(*limits, now.tp, now.utilisation, 2 * now.max_num_seqs)


def words(before: Plan, after: Plan) -> list[str]:
    """Return the command-line overrides that turn plan `before` into `after`."""
    parts = overrides(before.layout, after.layout)
    if before.rollout is not None and after.rollout is not None:
        keys = {"tp": "rollout_tp", "utilisation": "gpu_memory_utilization", "max_num_seqs": "max_num_seqs"}
        for field, key in keys.items():
            value = getattr(after.rollout, field)
            parts += [f"parallel.{key}={value}"] if value != getattr(before.rollout, field) else []
    return parts
