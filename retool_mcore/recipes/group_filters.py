"""Which prompts' groups a recipe drops whole, and why: pure functions of the group's verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retool_mcore.rollout.failures import Cause, most_common

LIMITS = ("all_equal", "accuracy")
REASONS = (*LIMITS, "nothing_left")
FAILED = "failed"  # a rollout of the group raised
SANDBOX = "sandbox_error"  # the sandbox itself failed in one


@dataclass(frozen=True)
class Outcome:
    """The outcome of one trajectory's reward: the verdict, and why the loss leaves it out ("": it does not)."""

    acc: float
    drop: str = ""


def group_reason(
    group: Sequence[Outcome],
    *,
    all_equal: bool = False,
    accuracy: Sequence[float] | None = None,
) -> str:
    """Why `group` is dropped, or "" when it is kept. Checked in this order:

    all_equal: all verdicts are equal (DAPO, arXiv 2503.14476, Eq. 11).
    accuracy: the mean verdict is not strictly between the two bounds (ZeroTIR 0.05 and 0.8, SimpleTIR 0.1 and 0.9).
    nothing_left: every sample is left out of the loss.

    `group` holds one trajectory at least.
    """
    accs = [outcome.acc for outcome in group]
    if all_equal and min(accs) == max(accs):
        return "all_equal"
    if accuracy is not None and not accuracy[0] < sum(accs) / len(accs) < accuracy[1]:
        return "accuracy"
    return "nothing_left" if all(outcome.drop for outcome in group) else ""


def drops_groups(filters: Mapping) -> bool:
    """Whether the section `recipe.filters` can drop a group."""
    return bool(filters["all_equal"] or filters["samples"]) or filters["accuracy"] is not None


def never_filled(step: int, batch: int, dropped: Mapping[str, int], causes: Sequence[Cause]) -> str:
    """The sentence for a step that dropped too many groups. dropped: groups by reason; causes: of those that failed."""
    counts = ", ".join(f"{reason} {count}" for reason, count in sorted(dropped.items()) if count)
    advice = []
    if causes:
        errors = "; ".join(f"{count} with {cause}" for cause, count in most_common(causes)[:3])
        advice.append(f"correct what made rollouts fail ({errors})")
    if dropped.get(SANDBOX):
        advice.append("start the sandbox again or correct sandbox.*, and see that `retool doctor` finds it")
    if any(count for reason, count in dropped.items() if reason not in (FAILED, SANDBOX)):
        advice.append(
            "loosen recipe.filters, start from a policy that is neither too weak nor too strong for the data, or raise "
            "recipe.filters.refill_limit"
        )
    total = sum(dropped.values())
    return (
        f"step {step}: {total} groups were dropped ({counts}) before a batch of {batch} was full: {'; '.join(advice)}."
    )
