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


def read_arms(plan: Plan, path: Path) -> tuple[Runs, list[str]]:
    """Return the plan's runs that are there, and the folders of those that are not.

    Raises UserError where none is there, and for a plan that is younger than a run.
    """
    runs_by_arm: dict[str, dict[int, Trained]] = {}
    missing = []
    for arm in plan.arms:
        for seed in plan.seeds:
            folder = plan.folder(arm, seed)
            if (folder / "rl").is_dir():
                runs_by_arm.setdefault(arm, {})[seed] = read_run(folder, plan.label)
            else:
                missing.append(str(folder))
    if not runs_by_arm:
        raise UserError(f"none of the runs of {path} is there: {missing[0]} was expected, for one.")
    fixed = fixed_at(path)
    for runs in runs_by_arm.values():
        for run in runs.values():
            if run.began is not None and run.began < fixed:
                raise UserError(
                    f"{path} got its content at {_time(fixed)}, after the RL of {run.path} began "
                    f"({_time(run.began)}): a criterion counts when it was fixed before its runs. Compare the folders "
                    "without a plan (retool compare RUN RUN ...), or run new seeds."
                )
    return runs_by_arm, missing


def judge(plan: Plan, runs: Runs) -> list[dict]:
    """Return a row a claim: the pairs in points, intervals over seeds and over problems, and whether it is met.

    A claim of which a run is missing has no verdict (`met` is None), and without any pair it has no row.
    """
    rows = []
    for name, claim in plan.claims.items():
        better, worse = runs.get(claim.better, {}), runs.get(claim.worse, {})
        if seeds := sorted(better.keys() & worse.keys()):
            row = _row(name, claim, plan, [better[seed] for seed in seeds], [worse[seed] for seed in seeds])
            rows.append(row if set(plan.seeds) <= set(seeds) else row | {"met": None})
    return rows


def _row(name: str, claim: Claim, plan: Plan, better: Sequence[Trained], worse: Sequence[Trained]) -> dict:
    ours, theirs = measured(plan, better, worse, claim)
    pairs = [100 * (mean(one) - mean(other)) for one, other in zip(ours, theirs, strict=True)]
    over_seeds = interval(pairs)
    over_problems = interval(problem_pairs(ours, theirs)) if len(ours[0]) > 1 else None
    known = [own for own in (over_seeds if len(pairs) > 1 else None, over_problems) if own]
    before = " before RL" if claim.worse_at == "start" else ""
    return {
        "claim": name,
        "criterion": f"{claim.better} - {claim.worse}{before} {_SIGNS[claim.rule]} {claim.points:g}",
        "of": claim.of,
        "sources": claim.sources,
        "pairs": [round(pair, 2) for pair in pairs],
        "mean": round(over_seeds[0], 2),
        "better": round(100 * mean([mean(one) for one in ours]), 2),
        "worse": round(100 * mean([mean(other) for other in theirs]), 2),
        "over_seeds": ends(over_seeds),
        "over_problems": ends(over_problems) if over_problems else None,
        "problems": len(ours[0]) if over_problems else None,
        "met": bool(known) and met(claim.rule, claim.points, pairs, known),
    }


def measured(
    plan: Plan, better: Sequence[Trained], worse: Sequence[Trained], claim: Claim
) -> tuple[list[list[float]], list[list[float]]]:
    """Return what the claim measures of each run of both arms: one value for each problem (the same problems for all
    runs), accuracies in [0, 1] or calls a trajectory; or one figure of training.

    Raises UserError for runs that were not measured this way, or on other problems.
    """
    runs = [*better, *worse]
    if plan.measure == "training":
        last = min(len(run.curve) for run in runs)
        values = [[statistics.fmean(list(run.curve.values())[max(0, last - plan.late) : last])] for run in runs]
        return values[: len(better)], values[len(better) :]
    tables: list[dict]  # of each run {problem: value}
    if plan.measure == "validation":
        steps = set.intersection(*(set(run.validations) for run in runs))
        if not steps:
            raise UserError(
                f"no step was validated in all runs ({_names(runs)}): set train.eval_every, or another measure."
            )
        tables = [_validated(run, max(steps), claim) for run in better]
        tables += [_validated(run, 0 if claim.worse_at == "start" else max(steps), claim) for run in worse]
    else:
        tables = [dict(run.evaluation) for run in runs]
        if missing := [run for run, table in zip(runs, tables, strict=True) if not table]:
            raise UserError(
                f"no evaluation {plan.label!r} in {_names(missing)}: run `retool eval policy={plan.label}`."
            )
    if len({frozenset(table) for table in tables}) > 1:
        raise UserError(f"{_names(runs)} were measured on other problems each: evaluate them on the same data.")
    values = [[table[problem] for problem in sorted(tables[0])] for table in tables]
    return values[: len(better)], values[len(better) :]


def _validated(run: Trained, step: int, claim: Claim) -> dict[int, float]:
    """{problem: value} of the claim's data sources at a validation."""
    if step not in run.validations:
        raise UserError(f"{run.path} was not validated before its first step: train it with train.eval_before=true.")
    own = run.validations[step]
    values = own.accuracies if claim.of == "accuracy" else own.calls
    if values is None or (claim.sources and own.sources is None):
        raise UserError(f"the validations of {run.path} are of a version that recorded no calls and data sources.")
    if not claim.sources:
        return dict(enumerate(values))
    if unknown := sorted(set(claim.sources) - set(own.sources or ())):
        raise UserError(f"{run.path} was not validated on the data source {unknown[0]}; it has {_listed(own.sources)}.")
    return {n: value for n, value in enumerate(values) if own.sources and own.sources[n] in claim.sources}


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


def _listed(sources: Sequence[str] | None) -> str:
    return ", ".join(dict.fromkeys(sources or ()))


def _names(runs: Sequence[Trained]) -> str:
    return ", ".join(str(run.path) for run in runs)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
