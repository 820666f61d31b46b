"""Causes in SFT: the loss does not fall, diverges, or falls on the training rows alone."""

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import Prepared, mean

FLAT = 0.97  # of the first loss, above which nothing was learnt


def diverged(p: Prepared) -> Finding | None:
    """The loss is not finite, or far above its lowest."""
    losses = {step: data["train/loss"] for step, data in p.steps.items() if "train/loss" in data}
    broken = [step for step, loss in losses.items() if loss != loss or loss in (float("inf"), float("-inf"))]
    finite = [loss for step, loss in losses.items() if step not in broken]
    if broken:
        what = f"the loss of {len(broken)} of {len(losses)} steps is not finite, first in step {broken[0]}"
    elif len(finite) >= 8 and mean(finite[-len(finite) // 4 :]) > 1.3 * _lowest(finite):
        what = f"the loss rose from {_lowest(finite):.3g} to {mean(finite[-len(finite) // 4 :]):.3g} in {p.span}"
    else:
        return None
    return Finding("learning rate too high", 0.93, what, "train.lr", "lower it to a third, or less", stage="sft")


def flat(p: Prepared) -> Finding | None:
    """The loss does not fall."""
    ends = p.ends("train/loss")
    if ends is None or len(p.steps) < 12 or ends[1] < FLAT * ends[0] or ends[1] > 1.3 * ends[0] or ends[1] < 0.1:
        return None
    rate = p.late_mean("train/lr")
    what = f"the loss stayed at {ends[0]:.3g} to {ends[1]:.3g} in {p.span}"
    what += f", at a learning rate of {rate:.1g}" if rate is not None else ""
    return Finding("learning rate too low", 0.85, what, "train.lr", "raise it tenfold", stage="sft")


def overfitted(p: Prepared) -> Finding | None:
    """The validation loss rises while the training loss falls."""
    validation, training = p.curve("val/loss"), p.ends("train/loss")
    if len(validation) < 3 or training is None or training[1] > training[0]:
        return None
    best = min(validation, key=lambda step: validation[step])
    last = max(validation)
    if validation[last] < 1.1 * validation[best]:
        return None
    what = (
        f"the validation loss rose from {validation[best]:.3g} in step {best} to {validation[last]:.3g} in step {last}"
        f", while the training loss fell to {training[1]:.3g}"
    )
    how = "lower it, or go on from sft-best"
    return Finding("overfitted", 0.8, what, "train.epochs", how, stage="sft")


def _lowest(losses: list[float]) -> float:
    """The lowest mean of a quarter of the losses."""
    each = max(1, len(losses) // 4)
    return min(mean(losses[at : at + each]) for at in range(len(losses) - each + 1))
