"""Filters of what a recipe does not learn from: groups that are dropped whole and replaced, samples that the loss
leaves out."""

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from retool_mcore.errors import UserError
from retool_mcore.recipes.group_filters import (
    FAILED,
    LIMITS,
    REASONS,
    SANDBOX,
    Outcome,
    drops_groups,
    group_reason,
    never_filled,
)
from retool_mcore.recipes.sandbox_errors import SandboxErrors
from retool_mcore.rollout.failures import Cause
from retool_mcore.rollout.samples import Group


class GroupFilter:
    """Decides about groups as they end, and counts those that a step drops.

    Args:
        filters: the section `recipe.filters`.
        sandbox_errors: share of a step's trajectories that the sandbox may lose before the run stops.
        batch, n: groups a step, samples a group.
    """

    def __init__(self, filters: Mapping, sandbox_errors: float, batch: int, n: int):
        self.filters, self.batch = filters, batch
        self.active = drops_groups(filters)
        self.errors = SandboxErrors(sandbox_errors, n)
        self.dropped: Counter[str] = Counter()  # since the last step took its groups
        self.causes: list[Cause] = []  # of the groups that failed since then
        self.step, self.lost, self.seen = -1, 0, 0  # trajectories of a step: spoilt by the sandbox, and all

    def reason(self, group: Group) -> str:
        """Why the group is dropped, "" where it is kept; counted until `metrics` is asked for."""
        reason = self._reason(group)
        if reason:
            self.dropped[reason] += 1
        return reason

    def check(self, step: int) -> None:
        """Raise UserError when the step drops more groups, or loses more to the sandbox, than it may."""
        self.errors.check(step, self.batch)
        if self.dropped.total() > self.filters["refill_limit"] * self.batch:
            raise UserError(never_filled(step, self.batch, self.dropped, self.causes))

    def metrics(self, step: int) -> dict[str, float]:
        """filters/groups/REASON: groups dropped since the last call; sandbox/error_share: of all that the step had."""
        reasons = [*(REASONS if self.active else ()), SANDBOX, FAILED]
        shares = {f"filters/groups/{reason}": float(self.dropped[reason]) for reason in reasons}
        if step != self.step:
            self.step, self.lost, self.seen = step, 0, 0
        self.lost, self.seen = self.lost + self.errors.lost, self.seen + self.errors.seen
        shares["sandbox/error_share"] = self.lost / self.seen if self.seen else 0.0
        self.dropped.clear()
        self.causes = []
        self.errors.clear()
        return shares

    def _reason(self, group: Group) -> str:
        if group.error is not None:
            print(f"a group of step {group.step} failed: {group.error}", flush=True)
            self.causes.append(group.error.failures[0][1])
            return FAILED
        if self.errors.add([s.finish for s in group.samples], lambda row: group.samples[row].notes["calls"]):
            return SANDBOX
        if not self.active:
            return ""
        outcomes = [Outcome(float(s.outcome["acc"]), str(s.outcome["drop"])) for s in group.samples]
        return group_reason(outcomes, **{name: self.filters[name] for name in LIMITS})


def leave_out(mask: torch.Tensor, drops: Sequence[str], names: Sequence[str]) -> tuple[torch.Tensor, dict[str, float]]:
    """The mask without the samples that a filter dropped, and how many each of the filters `names` dropped.

    mask: (samples, tokens); drops: of each sample the filter that dropped it, "" for none. A sample that is left out
    keeps its reward in its group's baseline: only its own tokens teach nothing.
    """
    kept = torch.tensor([not drop for drop in drops], dtype=mask.dtype)
    counts = Counter(drops)
    metrics = {f"filters/samples/{name}": float(counts[name]) for name in names}
    return mask * kept[:, None], metrics | {"filters/samples/kept": float(counts[""])}
