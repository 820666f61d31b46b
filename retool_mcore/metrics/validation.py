"""mean@n over a fixed set of problems, how sure it is, and whether one policy's is better than another's."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import comb, nan, sqrt
from operator import eq
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

FILE = "validation.jsonl"  # in the stage's folder: {"step", "problems": [mean of each]}, one line a validation


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the problems' means m_1 ... m_P, and its standard error; NaN where there are too few.

        error = sqrt(sum_i (m_i - mean)^2 / (P (P - 1)))

    Problems are the independent draws, not their n samples each: the spread of the m_i holds both how problems differ
    and what n samples leave open (Miller, arXiv 2411.00640).
    """
    count = len(values)
    mean = sum(values) / count if count else nan
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / (count * (count - 1))) if count > 1 else nan


def problem_means(uids: Sequence[str], verdicts: Sequence[float | None], expected: Mapping[tuple, int]) -> list[float]:
    """Mean verdict of every problem of `expected`, {(data source, uid): samples asked for}, in its order.

    uids, verdicts: one a sample that came back. One that did not counts as wrong, as in verl's own figures.
    """
    sums: dict[str, float] = defaultdict(float)
    for uid, verdict in zip(uids, verdicts, strict=True):
        sums[uid] += verdict or 0.0
    return [sums[uid] / samples for (_, uid), samples in expected.items()]


def validation_metrics(sources: Sequence[str], means: Sequence[float]) -> dict[str, float]:
    """val/accuracy and val/accuracy_se over all problems, and val/SOURCE/... of each data source; one entry each."""
    parts = {"": list(means)}
    for source, mean in zip(sources, means, strict=True):
        parts.setdefault(f"{source}/", []).append(mean)
    found = {f"val/{part}accuracy": mean_and_error(values) for part, values in parts.items()}
    return {name: mean for name, (mean, _) in found.items()} | {f"{name}_se": se for name, (_, se) in found.items()}


def worse_in_a_row(validations: Sequence[Sequence[float]]) -> int:
    """How many of the last validations (oldest first, the means of the same problems) did not beat the best before.

    To beat it is to be above it by more than the standard error of the differences problem by problem (Miller, arXiv
    2411.00640, paired differences): what makes a problem hard is in both, so it is a fraction of either's own.
    """
    best, count = validations[0], 0
    for means in validations[1:]:
        gain, error = mean_and_error([new - old for new, old in zip(means, best, strict=True)])
        best, count = (means, 0) if gain > error else (best, count + 1)
    return count


def record(stage_dir: Path, step: int, means: list[float]) -> list[list[float]]:
    """Add a validation to the stage's file; returns all up to `step`, oldest first, over all attempts.

    What an earlier attempt had beyond the checkpoint that was resumed, or of other problems, does not count.
    """
    path = stage_dir / FILE
    lines = [*(path.read_text().splitlines() if path.exists() else ()), json.dumps({"step": step, "problems": means})]
    write_atomically(path, "".join(f"{line}\n" for line in lines))
    by_step = {line["step"]: line["problems"] for line in map(json.loads, lines) if line["step"] <= step}
    return [by_step[n] for n in sorted(by_step) if len(by_step[n]) == len(means)]


def pass_at_k(records: list[dict], k: int, same: Callable[[str, str], bool] = eq) -> dict[str, float]:
    """Scores per data source, keys `SOURCE/mean@k`, `SOURCE/best@k`, `SOURCE/maj@k`: means over the source's problems.

    records: one per sample, with "data_source", "index" (of the problem), "acc" (1 or 0) and "pred" ("" for no answer).
    same: whether two predictions mean the same. With n >= k samples of a problem, c of them correct:

        mean@k = c / n                              all n are used: the expectation does not depend on k
        best@k = 1 - C(n - c, k) / C(n, k)          unbiased, Chen et al. 2021 (arXiv 2107.03374), Eq. 1
        maj@k  = acc of the winner of the vote among the first k samples, in the records' order

    Raises UserError when a problem has fewer than k samples, ValueError for k < 1 or an acc other than 0 and 1.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    problems: dict[tuple, list[dict]] = defaultdict(list)
    for record in records:
        if record["acc"] not in (0, 1):
            raise ValueError(f"acc must be 0 or 1, got {record['acc']!r}")
        problems[record["data_source"], record["index"]].append(record)

    scores: dict[str, list[float]] = defaultdict(list)
    for (source, index), samples in problems.items():
        n, correct = len(samples), sum(int(sample["acc"]) for sample in samples)
        if n < k:
            raise UserError(f"Problem {index} of {source} has {n} samples, {k} are needed: lower k or sample more.")
        scores[f"{source}/mean@{k}"].append(correct / n)
        scores[f"{source}/best@{k}"].append((comb(n, k) - comb(n - correct, k)) / comb(n, k))
        scores[f"{source}/maj@{k}"].append(majority_acc(samples[:k], same))
    return {name: sum(values) / len(values) for name, values in scores.items()}


def majority_acc(samples: list[dict], same: Callable[[str, str], bool] = eq) -> float:
    """`acc` of the most frequent prediction; 0.0 when no sample has one (samples without a prediction do not vote).

    Predictions that differ only in white space are one; others are compared by `same`, each with the first prediction
    of every group so far. Of groups with equally many votes the one whose first vote came first wins, and a group
    counts as its first vote does.
    """
    group_of: dict[str, int] = {}  # every spelling seen, so that `same` (which may cost seconds) runs once for each
    firsts: list[dict] = []
    votes: list[int] = []
    for sample in samples:
        pred = " ".join(sample["pred"].split())
        if not pred:
            continue
        if pred not in group_of:
            matches = (group for group, first in enumerate(firsts) if same(pred, first["pred"]))
            group_of[pred] = next(matches, len(firsts))
            if group_of[pred] == len(firsts):
                firsts.append(sample)
                votes.append(0)
        votes[group_of[pred]] += 1
    return float(firsts[votes.index(max(votes))]["acc"]) if votes else 0.0
