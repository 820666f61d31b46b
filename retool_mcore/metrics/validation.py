"""mean@n over a fixed set of problems, how sure it is, and whether one policy's is better than another's."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import nan, sqrt
from operator import eq
from pathlib import Path
from zlib import crc32

from retool_mcore.files import read_json_lines, write_atomically
from retool_mcore.metrics.pass_k import majority_acc

# In the stage's folder, one line a validation: the step, and for each problem its mean accuracy ("problems"), its data
# source ("sources") and its calls a trajectory ("calls").
FILE = "validation.jsonl"


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of the problems' means m_1 ... m_P, and its standard error; NaN where there are too few.

        error = sqrt(sum_i (m_i - mean)^2 / (P (P - 1)))

    Problems are the independent draws, not their n samples each: the spread of the m_i holds both how problems differ
    and what n samples leave open (Miller, arXiv 2411.00640).
    """
    count = len(values)
    mean = sum(values) / count if count else nan
    return mean, sqrt(sum((value - mean) ** 2 for value in values) / (count * (count - 1))) if count > 1 else nan


def validation_metrics(sources: Sequence[str], means: Sequence[float]) -> dict[str, float]:
    """val/accuracy and val/accuracy_se over all problems, and val/SOURCE/... of each data source; one entry each."""
    parts = {"": list(means)}
    for source, mean in zip(sources, means, strict=True):
        parts.setdefault(f"{source}/", []).append(mean)
    estimates = {f"val/{part}accuracy": mean_and_error(values) for part, values in parts.items()}
    return {name: mean for name, (mean, _) in estimates.items()} | {
        f"{name}_se": se for name, (_, se) in estimates.items()
    }


def set_metrics(
    name: str,
    uids: Sequence[str],
    verdicts: Sequence[float | None],
    answers: Sequence[str | None],
    expected: Mapping[tuple, int],
    same: Callable[[str, str], bool] = eq,
) -> dict[str, float]:
    """val/NAME/accuracy (mean@n), best@n and maj@n of a set whose problems all have n samples, each with its standard
    error over the problems as X_se; val/NAME/SOURCE/... of each data source; val/NAME/failed.

    Args:
        uids, verdicts, answers: one a sample that came back: its problem, 1 or 0, and what it answered ("": nothing).
        expected: {(data source, uid): samples asked for}; a sample that did not come back is wrong, without an answer.
        same: whether two answers mean the same.
    """
    samples: dict[str, list[dict]] = defaultdict(list)
    for uid, verdict, answer in zip(uids, verdicts, answers, strict=True):
        samples[uid].append({"acc": verdict or 0.0, "pred": answer or ""})
    figures: dict[str, list[float]] = defaultdict(list)
    for (source, uid), n in expected.items():
        # Samples come in the order in which they end: a vote that is even must not be decided by their length.
        own = sorted(samples[uid], key=lambda sample: crc32(sample["pred"].encode()))
        right = sum(sample["acc"] for sample in own)
        values = {"accuracy": right / n, f"best@{n}": float(right > 0), f"maj@{n}": majority_acc(own, same)}
        for part in ("", f"{source}/"):
            for figure, value in values.items():
                figures[f"val/{name}/{part}{figure}"].append(value)
    metrics: dict[str, float] = {}
    for figure, each in figures.items():
        metrics[figure], metrics[f"{figure}_se"] = mean_and_error(each)
    lost = sum(expected.values()) - sum(verdict is not None for verdict in verdicts)
    return metrics | {f"val/{name}/failed": float(lost)}


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


def record(
    stage_dir: Path, step: int, means: list[float], sources: Sequence[str], calls: Sequence[float]
) -> list[list[float]]:
    """Add a validation to the stage's file; return the accuracies of all up to `step`, oldest first, over all attempts.

    What an earlier attempt had beyond the checkpoint that was resumed, or of other problems, does not count.

    Args:
        means, sources, calls: accuracy, data source and calls a trajectory of each problem.
    """
    path = stage_dir / FILE
    validations = [
        *read_json_lines(path),
        {"step": step, "problems": means, "sources": list(sources), "calls": list(calls)},
    ]
    write_atomically(path, "".join(f"{json.dumps(one)}\n" for one in validations))
    by_step = {one["step"]: one["problems"] for one in validations if one["step"] <= step}
    return [by_step[n] for n in sorted(by_step) if len(by_step[n]) == len(means)]
