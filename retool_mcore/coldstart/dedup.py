"""The stages that compare rows with each other: exact copies and disputed answers, then near duplicates.

Both read the rows twice, and between keep only what they compare: reasonings of a large set would not fit in memory.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from retool_mcore.coldstart.minhash import candidates, jaccard, numbers, shingles, signature, words
from retool_mcore.coldstart.rows import Outcome, Row, content_key
from retool_mcore.rewards.grader.structure import decide

Rows = Callable[[], Iterable[Row]]


@dataclass
class _Problem:
    """What is known of one problem; `first` is the index of its first row."""

    first: int
    answers: list[str] = field(default_factory=list)
    reasonings: set[str] = field(default_factory=set)


def exact(rows: Rows, per_problem: int) -> Iterator[Outcome]:
    """Keeps the first `per_problem` rows of each problem; of a problem with two different answers, none.

    rows: gives the same rows at each call.
    """
    problems: dict[str, _Problem] = {}
    for row in rows():
        problem = problems.setdefault(_bare(row), _Problem(row.index))
        if not any(row.answer == answer or decide(row.answer, answer) for answer in problem.answers):
            problem.answers.append(row.answer)
    for row in rows():
        problem, reasoning = problems[_bare(row)], content_key(row.reasoning)
        if len(problem.answers) > 1:
            detail = f"row {problem.first}: {problem.answers[:3]}"
            yield Outcome(row.key, row.index, None, "same problem, another answer", detail)
        elif reasoning in problem.reasonings or len(problem.reasonings) >= per_problem:
            yield Outcome(row.key, row.index, None, "same problem", f"row {problem.first}")
        else:
            problem.reasonings.add(reasoning)
            yield Outcome(row.key, row.index, row)


@dataclass(frozen=True)
class _Sketch:
    """`hashes` and `signature` as in minhash.py."""

    index: int
    bare: str
    hashes: np.ndarray
    signature: np.ndarray
    numbers: tuple[str, ...]


def near(
    rows: Rows, threshold: float, size: int, parallel: Callable[[Callable, Iterable], Iterator] = map
) -> Iterator[Outcome]:
    """Drops a row whose problem has the numbers of an earlier one and at least `threshold` of its shingles.

    rows: gives the same rows at each call. parallel: `map`, or the like over processes. Rows of the very same problem
    are not compared: `exact` has counted them already.
    """
    sketches = list(parallel(partial(_sketch, size=size), rows()))
    twins: dict[int, tuple[int, float]] = {}
    for first, later in candidates([s.signature for s in sketches], [s.numbers for s in sketches]):
        a, b = sketches[first], sketches[later]
        if later not in twins and a.bare != b.bare and (similarity := jaccard(a.hashes, b.hashes)) >= threshold:
            twins[later] = (a.index, similarity)
    for number, row in enumerate(rows()):
        if number in twins:
            detail = "row {}, Jaccard similarity {:.2f}".format(*twins[number])
            yield Outcome(row.key, row.index, None, "nearly the same problem", detail)
        else:
            yield Outcome(row.key, row.index, row)


def _sketch(row: Row, size: int) -> _Sketch:
    hashes = shingles(row.problem, size)
    return _Sketch(row.index, _bare(row), hashes, signature(hashes), numbers(row.problem))


def _bare(row: Row) -> str:
    return " ".join(words(row.problem))
