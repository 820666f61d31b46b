"""Arms against each other over seeds and problems, and a run against a reference curve."""

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from retool_mcore.analysis.arms import Trained, read_run
from retool_mcore.analysis.plan import Claim, Plan, fixed_at
from retool_mcore.analysis.statistics import interval, met
from retool_mcore.errors import UserError

_SIGNS = {"all": ">=", "above": "interval above", "within": "interval within +-"}
Runs = Mapping[str, Mapping[int, Trained]]  # arm -> seed -> run


def read_arms(plan: Plan, path: Path) -> Runs:
    """The plan's runs. Raises UserError for one that is missing, and for a plan that is younger than a run."""
    runs_by_arm: dict[str, dict[int, Trained]] = {}
    for arm in plan.arms:
        runs_by_arm[arm] = {seed: read_run(plan.folder(arm, seed), plan.label) for seed in plan.seeds}
    fixed = fixed_at(path)
    for runs in runs_by_arm.values():
        for run in runs.values():
            if run.began is not None and run.began < fixed:
                raise UserError(
                    f"{path} got its content at {_time(fixed)}, after the RL of {run.path} began "
                    f"({_time(run.began)}): a criterion counts when it was fixed before its runs. Compare the folders "
                    "without a plan (retool compare RUN RUN ...), or run new seeds."
                )
    return runs_by_arm


def judge(plan: Plan, runs: Runs) -> list[dict]:
    """One row a claim: the pairs in points, intervals over seeds and over problems, and whether it is met."""
    return [_row(name, claim, plan, runs[claim.better], runs[claim.worse]) for name, claim in plan.claims.items()]


def _row(name: str, claim: Claim, plan: Plan, better: Mapping[int, Trained], worse: Mapping[int, Trained]) -> dict:
    values = measured(plan, [*better.values(), *worse.values()])
    ours, theirs = values[: len(better)], values[len(better) :]
    pairs = [100 * (mean(one) - mean(other)) for one, other in zip(ours, theirs, strict=True)]
    over_seeds = interval(pairs)
    over_problems = interval(problem_pairs(ours, theirs)) if len(ours[0]) > 1 else None
    known = [own for own in (over_seeds if len(pairs) > 1 else None, over_problems) if own]
    return {
        "claim": name,
        "criterion": f"{claim.better} - {claim.worse} {_SIGNS[claim.rule]} {claim.points:g}",
        "pairs": [round(pair, 2) for pair in pairs],
        "mean": round(over_seeds[0], 2),
        "over_seeds": ends(over_seeds),
        "over_problems": ends(over_problems) if over_problems else None,
        "problems": len(ours[0]) if over_problems else None,
        "met": bool(known) and met(claim.rule, claim.points, pairs, known),
    }


def measured(plan: Plan, runs: Sequence[Trained]) -> list[list[float]]:
    """Return each run's accuracies in [0, 1]: one for each problem (the same problems for all runs), or one figure of
    training.

    Raises UserError for runs that were not measured this way, or on other problems.
    """
    if plan.measure == "training":
        last = min(len(run.curve) for run in runs)
        return [[statistics.fmean(list(run.curve.values())[max(0, last - plan.late) : last])] for run in runs]
    tables: list[dict]  # of each run {problem: accuracy}
    if plan.measure == "validation":
        steps = set.intersection(*(set(run.validations) for run in runs))
        if not steps:
            raise UserError(
                f"no step was validated in all runs ({_names(runs)}): set train.eval_every, or another measure."
            )
        tables = [dict(enumerate(run.validations[max(steps)])) for run in runs]
    else:
        tables = [dict(run.evaluation) for run in runs]
        if missing := [run for run, table in zip(runs, tables, strict=True) if not table]:
            raise UserError(
                f"no evaluation {plan.label!r} in {_names(missing)}: run `retool eval policy={plan.label}`."
            )
    if len({frozenset(table) for table in tables}) > 1:
        raise UserError(f"{_names(runs)} were measured on other problems each: evaluate them on the same data.")
    return [[table[problem] for problem in sorted(tables[0])] for table in tables]


def problem_pairs(ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]]) -> list[float]:
    """Return for each problem the difference in points, mean over the pairs of runs. ours, theirs: (runs, problems)."""
    means = [[statistics.fmean(column) for column in zip(*runs, strict=True)] for runs in (ours, theirs)]
    return [100 * (one - other) for one, other in zip(*means, strict=True)]


def costs(runs: Runs) -> list[dict]:
    """Return for each arm: runs, minutes and tokens of a run, and GPU minutes where there are GPUs."""
    return [
        {
            "arm": arm,
            "runs": len(own),
            "accuracy": round(mean([list(run.curve.values())[-1] for run in own.values()]), 4),
            "minutes": round(mean([run.minutes for run in own.values()]), 1),
            "gpu_minutes": round(mean([run.minutes * run.gpus for run in own.values()]), 1) or None,
            "tokens": round(mean([run.tokens for run in own.values()])),
        }
        for arm, own in runs.items()
    ]


def ends(found: tuple[float, float]) -> list[float] | None:
    """[low, high] of (mean, half); None of a single pair."""
    mean_, half = found
    return None if half == float("inf") else [round(mean_ - half, 2), round(mean_ + half, 2)]


def mean(values: Sequence[float]) -> float:
    """The mean."""
    return statistics.fmean(values)


def _names(runs: Sequence[Trained]) -> str:
    return ", ".join(str(run.path) for run in runs)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
