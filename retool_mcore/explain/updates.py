"""Causes in the updates: broken steps, entropy, the learning rate, mismatch with the engine, stale rollouts."""

from retool_mcore.explain.finding import Finding
from retool_mcore.explain.prepared import TREND, Prepared, mean, span, two

MISMATCH = 0.01  # mismatch/kl, where the configuration has no bound of its own
CLIPPED = 0.3  # share of tokens
MOVED = 0.2  # actor/ppo_kl of a step
STILL = 1e-6


def failed(p: Prepared) -> Finding | None:
    """The stage ended with an error."""
    if p.outcome != "failed":
        return None
    error = " ".join(p.error.split())[:300].rstrip(".") or "an error that its log does not name"
    what = f"it failed after {p.span}: {error}"
    return Finding("failed", 0.97, what, "what the error names", f"the whole of it: {p.run / p.stage / 'log.txt'}")


def broken(p: Prepared) -> Finding | None:
    """Gradients are NaN or infinite."""
    steps = sorted(step for step, count in p.curve("actor/broken_updates").items() if count > 0)
    if not steps:
        return None
    what = f"updates of {len(steps)} of {len(p.steps)} steps had no finite gradient, first in step {steps[0]}"
    explains = ("learning rate too high", "entropy explosion")
    return Finding("broken updates", 0.95, what, "train.lr", "lower it", (), explains)


def entropy_collapse(p: Prepared) -> Finding | None:
    """The policy's entropy fell to a fraction, and it does not answer better."""
    ends = p.ends("actor/entropy")
    if ends is None or len(p.steps) < TREND or ends[1] > 0.15 * ends[0] or p.rise() > 0.1 or p.accuracy > 0.85:
        return None
    what = f"the entropy fell from {ends[0]:.3g} to {ends[1]:.3g} in {p.span}, at an accuracy of {p.accuracy:.0%}"
    looks = two(p.late_rows, lambda row: not row.acc)
    return Finding("entropy collapse", 0.8, what, "recipe.clip_high", "raise it (DAPO: 0.28), or lower train.lr", looks)


def entropy_explosion(p: Prepared) -> Finding | None:
    """The policy's entropy grew, and it answers no better."""
    ends = p.ends("actor/entropy")
    if ends is None or len(p.steps) < TREND or ends[1] < max(2 * ends[0], ends[0] + 0.5) or p.rise() > 0.1:
        return None
    what = f"the entropy rose from {ends[0]:.3g} to {ends[1]:.3g} in {p.span}, at an accuracy of {p.accuracy:.0%}"
    looks = two(p.late_rows, lambda row: not row.acc)
    explains = ("format lost", "groups all wrong", "calls vanish", "answers cut")
    return Finding(
        "entropy explosion", 0.92, what, "train.lr", "lower it, or set recipe.kl_coefficient", looks, explains
    )


def lr_high(p: Prepared) -> Finding | None:
    """An update moves the policy too far: by clipped tokens, by its KL, or by norms after which the accuracy fell."""
    clipped, moved = p.late_mean("actor/pg_clipfrac") or 0.0, abs(p.late_mean("actor/ppo_kl") or 0.0)
    accuracy = list(p.curve("reward/accuracy").values())
    each = max(1, len(accuracy) // 4)
    fell = max((mean(accuracy[at : at + each]) for at in range(len(accuracy) - each + 1)), default=0.0) - p.accuracy
    if clipped < CLIPPED and moved < MOVED:
        return None
    what = (
        f"in the last steps {clipped:.0%} of the tokens were clipped and an update moved the policy by a KL of "
        f"{moved:.2g}, at a learning rate of {p.key('train.lr', '?')}"
    )
    if fell > 0.1:
        what += f"; the accuracy is {100 * fell:.0f} points below its best"
    explains = ("entropy explosion", "entropy collapse", "format lost", "calls vanish", "mismatch", "groups all wrong")
    return Finding("learning rate too high", 0.93, what, "train.lr", "lower it to a third, or less", (), explains)


def lr_low(p: Prepared) -> Finding | None:
    """The policy stands still although there is something to learn."""
    rates, kl = p.curve("actor/lr"), p.curve("actor/ppo_kl")
    norms = p.curve("actor/grad_norm")
    several = (p.key("train.mini_batch") or 0) < (p.key("train.batch") or 0)
    if len(p.steps) < TREND or not norms or mean(list(norms.values())) <= 0 or p.accuracy > 0.9 or abs(p.rise()) > 0.1:
        return None
    still = several and len(kl) >= 6 and max(abs(value) for value in kl.values()) < STILL
    if not still and not (rates and max(rates.values()) < 1e-9):
        return None
    most = max(map(abs, kl.values()), default=None)
    moved = "no KL is recorded" if most is None else f"an update moved the policy by a KL of at most {most:.1g}"
    what = (
        f"in {p.span} {moved}, the accuracy changed by {100 * p.rise():+.1f} points, and the gradient is not 0 (norm "
        f"{mean(list(norms.values())):.2g}); the learning rate is {max(rates.values(), default=0.0):.1g}"
    )
    return Finding("learning rate too low", 0.85, what, "train.lr", "raise it tenfold", ())


def mismatch(p: Prepared) -> Finding | None:
    """The rollout engine's probabilities are not the trainer's."""
    bound = float(p.key("alarms.mismatch.bound") or MISMATCH)
    values = p.curve("mismatch/kl")
    late = p.late_mean("mismatch/kl")
    if late is None or late <= bound:
        return None
    above = sorted(step for step, value in values.items() if value > bound)
    what = (
        f"the KL from the rollout engine's policy to the trainer's is {late:.2g} in the last steps and above "
        f"{bound:.2g} in {len(above)} of {len(values)} steps, first in step {above[0]}"
    )
    how = "weights, or rejects, what the engine sampled otherwise; also compare the dtypes of engine and trainer"
    explains = ("entropy explosion", "learning rate too high")
    return Finding("mismatch", 0.89, what, "correction", how, _far_apart(p), explains)


def _far_apart(p: Prepared) -> tuple[tuple[int, int], ...]:
    """The late trajectories whose log-probabilities differ most between engine and trainer."""
    gaps = []
    for record in p.late:
        ours, theirs = record.get("old_log_probs"), record.get("logprobs")
        if ours is not None and theirs is not None and len(ours) == len(theirs) and len(ours):
            gaps.append((float(abs(ours - theirs).max()), (record["step"], record["row"])))
    return tuple(place for _, place in sorted(gaps, reverse=True)[:2])


def stale(p: Prepared) -> Finding | None:
    """Trajectories were begun by a policy several updates old, or few of them still count."""
    worst = p.late_mean("training/off_policy/trajectory_staleness_worst/mean") or 0.0
    effective = p.late_mean("rollout_corr/rollout_is_eff_sample_size")
    few = effective is not None and effective < 0.3
    if worst < 3 and not (few and worst >= 1):
        return None
    what = f"the policy that began a trajectory of the last steps is {worst:.1f} updates old on average"
    if effective is not None:
        what += f", and the importance weights leave an effective sample of {effective:.0%}"
    how = "lower it, or take pipeline=sync"
    return Finding("stale rollouts", 0.84, what, "pipeline.staleness", how, _oldest(p), ("mismatch",))


def _oldest(p: Prepared) -> tuple[tuple[int, int], ...]:
    ages = [
        (record["step"] - min(version["version"] for version in record["versions"]), (record["step"], record["row"]))
        for record in p.late
        if record.get("versions")
    ]
    return tuple(place for _, place in sorted(ages, reverse=True)[:2])


def short_of_steps(p: Prepared) -> str:
    """Why some causes cannot be judged, "" where all can."""
    return (
        "" if len(p.steps) >= TREND or not p.steps else f"only {span(p.steps)}: causes that need a trend are not judged"
    )
