"""Intervals over pairs, and whether they meet a criterion that was fixed before the runs."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

RULES = {
    "all": "the mean is at least `points` and every pair is above 0",
    "above": "the lower end of every 95 % interval is above `points`",
    "within": "every 95 % interval lies within +-`points`",
}


def interval(pairs: Sequence[float]) -> tuple[float, float]:
    """Mean, and half of its 95 % t-interval; infinite for one pair."""
    from scipy import stats  # takes half a second, which `retool --help` has not

    if len(pairs) < 2:
        return statistics.fmean(pairs), float("inf")
    half = stats.t.ppf(0.975, len(pairs) - 1) * statistics.stdev(pairs) / len(pairs) ** 0.5
    return statistics.mean(pairs), float(half)


def met(rule: str, points: float, pairs: Sequence[float], intervals: Sequence[tuple[float, float]]) -> bool:
    """Whether the pairs meet one of RULES. intervals: (mean, half) over seeds and, where there are any, problems."""
    if rule == "all":
        return statistics.fmean(pairs) >= points and all(pair > 0 for pair in pairs)
    if rule == "above":
        return all(mean - half > points for mean, half in intervals)
    return all(abs(mean) + half < points for mean, half in intervals)


def reached(runs: Iterable[Mapping]) -> int | None:
    """The last step after which all these runs were validated, of those that were at all; None: none was.

    Each run has "validations", {step: accuracy}.
    """
    steps = [{int(step) for step in run["validations"]} for run in runs if run.get("validations")]
    return max(set.intersection(*steps), default=None) if steps else None
