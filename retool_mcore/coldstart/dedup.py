"""The stages that compare rows with each other: exact copies and disputed answers, then near duplicates."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from retool_mcore.coldstart.minhash import candidates, jaccard, numbers, shingles, signature, words
from retool_mcore.coldstart.rows import Outcome, Row
from retool_mcore.reward.grader.text import normal_form


def exact(rows: Iterable[Row], per_problem: int) -> Iterator[Outcome]:
    """Keeps the first `per_problem` rows of each problem; of a problem with two different answers, none."""
    rows = list(rows)
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[" ".join(words(row.problem))].append(number)
    for members in groups.values():
        answers = {normal_form(rows[number].answer) for number in members}
        reasonings: set[str] = set()
        for number in members:
            row = rows[number]
            if len(answers) > 1:
                detail = f"row {rows[members[0]].index}: {sorted(answers)[:3]}"
                yield Outcome(row.key, row.index, None, "same problem, another answer", detail)
            elif row.reasoning in reasonings or len(reasonings) >= per_problem:
                yield Outcome(row.key, row.index, None, "same problem", f"row {rows[members[0]].index}")
            else:
                reasonings.add(row.reasoning)
                yield Outcome(row.key, row.index, row)


@dataclass(frozen=True)
class _Sketch:
    row: Row
    hashes: np.ndarray
    signature: np.ndarray
    numbers: tuple[str, ...]


def _sketch(row: Row, size: int) -> _Sketch:
    hashes = shingles(row.problem, size)
    return _Sketch(row, hashes, signature(hashes), numbers(row.problem))


def near(
    rows: Iterable[Row], threshold: float, size: int, parallel: Callable[[Callable, Iterable], Iterator] = map
) -> Iterator[Outcome]:
    """Drops a row whose problem has the numbers of an earlier one and at least `threshold` of its shingles.

    parallel: `map`, or the like over processes. Rows of the very same problem are not compared: `exact` has counted
    them already.
    """
    sketches = list(parallel(partial(_sketch, size=size), rows))
    twins: dict[int, tuple[int, float]] = {}
    groups = [sketch.numbers for sketch in sketches]
    for first, later in candidates([sketch.signature for sketch in sketches], groups):
        a, b = sketches[first], sketches[later]
        if later in twins or words(a.row.problem) == words(b.row.problem):
            continue
        if (similarity := jaccard(a.hashes, b.hashes)) >= threshold:
            twins[later] = (first, similarity)
    for number, sketch in enumerate(sketches):
        row = sketch.row
        if number in twins:
            first, similarity = twins[number]
            detail = f"row {sketches[first].row.index}, Jaccard similarity {similarity:.2f}"
            yield Outcome(row.key, row.index, None, "nearly the same problem", detail)
        else:
            yield Outcome(row.key, row.index, row)
