"""Accuracy of several samples per problem: mean@k, best@k and maj@k."""

from collections import Counter, defaultdict
from collections.abc import Callable
from math import comb
from operator import eq

from retool_mcore.errors import UserError


def pass_at_k(records: list[dict], k: int, same: Callable[[str, str], bool] = eq) -> dict[str, float]:
    """Return the scores per data source, `SOURCE/mean@k`, `SOURCE/best@k` and `SOURCE/maj@k`: the means over its
    problems of `problem_scores`."""
    return {name: sum(own) / len(own) for name, own in problem_scores(records, k, same).items()}


def problem_scores(records: list[dict], k: int, same: Callable[[str, str], bool] = eq) -> dict[str, list[float]]:
    """Return for each `SOURCE/mean@k`, `SOURCE/best@k` and `SOURCE/maj@k` one value for each of the source's problems.

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
    return scores


def majority_acc(samples: list[dict], same: Callable[[str, str], bool] = eq) -> float:
    """`acc` of the most frequent prediction; 0.0 when no sample has one (samples without a prediction do not vote).

    Predictions that differ only in white space are one; others are compared by `same`, each with the first prediction
    of every group so far. Of groups with equally many votes the one whose first vote came first wins, and a group
    counts as its first vote does.
    """
    group_of: dict[str, str] = {}  # every spelling seen, so that `same` (which may cost seconds) runs once for each
    firsts: dict[str, dict] = {}
    votes: Counter[str] = Counter()
    for sample in samples:
        pred = " ".join(sample["pred"].split())
        if not pred:
            continue
        if pred not in group_of:
            group_of[pred] = next((group for group, first in firsts.items() if same(pred, first["pred"])), pred)
            firsts.setdefault(group_of[pred], sample)
        votes[group_of[pred]] += 1
    return float(firsts[max(votes, key=votes.__getitem__)]["acc"]) if votes else 0.0
