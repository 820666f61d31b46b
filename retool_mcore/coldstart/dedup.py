"""The stages that compare problems: exact copies and disputed answers, near duplicates, and with evaluation sets.

The first two read the rows twice, and between keep only what they compare: the reasonings of a large set would not fit
in memory.

Near duplicates by MinHash with banding (Broder 1997), over numpy: a signature holds, for each of `PERMUTATIONS` hash
functions, the least hash of the text's shingles; two signatures agree in a place with the probability of the sets'
Jaccard similarity. Texts that agree in all places of one band are compared exactly.
"""

import re
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from retool_mcore.coldstart.config import EvaluationFile
from retool_mcore.coldstart.normalise import bare_problem
from retool_mcore.coldstart.rows import Drop, Outcome, Row, content_key
from retool_mcore.coldstart.source import at, text
from retool_mcore.data.sources import raw_rows
from retool_mcore.errors import UserError
from retool_mcore.rewards.grader.structure import decide

PERMUTATIONS, BANDS = 128, 32
_rng = np.random.default_rng(20504)
# Multiply-shift hashing (Dietzfelbinger et al. 1997) asks for odd multipliers.
_A = _rng.integers(0, 2**63, PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_B = _rng.integers(0, 2**63, PERMUTATIONS, dtype=np.uint64)
_WORD = re.compile(r"\\[a-z]+|\w+|[^\s\w]", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Typesetting that says nothing about the problem.
_NOISE = frozenset((r"\left", r"\right", r"\displaystyle", r"\text", r"\mathrm", *"${}\\.,?!:;"))
Rows = Callable[[], Iterable[Row]]


@dataclass
class _Problem:
    """The known facts about one problem; `first` is the index of its first row."""

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


def words(text: str) -> list[str]:
    """Words, commands and symbols of a problem, case folded, without typesetting."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _NOISE]


def numbers(text: str) -> tuple[str, ...]:
    """The numbers of a problem: two problems that differ in one are two problems, however alike they read."""
    return tuple(sorted(_NUMBER.findall(text)))


def shingles(text: str, size: int) -> np.ndarray:
    """Sorted distinct hashes of all runs of `size` words: (shingles,) uint32, at least one."""
    tokens = words(text)
    runs = {" ".join(tokens[i : i + size]) for i in range(max(1, len(tokens) - size + 1))}
    return np.unique(np.fromiter((zlib.crc32(run.encode()) for run in runs), np.uint32, len(runs)))


def signature(hashes: np.ndarray) -> np.ndarray:
    """(PERMUTATIONS,) uint32 of (shingles,) uint32."""
    least = np.full(PERMUTATIONS, np.iinfo(np.uint64).max, np.uint64)
    for start in range(0, len(hashes), 4096):
        block = hashes[start : start + 4096].astype(np.uint64)
        np.minimum(least, (block[None, :] * _A[:, None] + _B[:, None]).min(axis=1), out=least)
    return (least >> np.uint64(32)).astype(np.uint32)


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)


def candidates(signatures: Sequence[np.ndarray], groups: Sequence[Hashable]) -> Iterator[tuple[int, int]]:
    """(earlier, later) of texts of one group that share a band: each later one with the first of its bucket, each pair
    once. Both sequences have an entry a text."""
    seen: list[dict[tuple, int]] = [{} for _ in range(BANDS)]
    rows = PERMUTATIONS // BANDS
    for number, (values, group) in enumerate(zip(signatures, groups, strict=True)):
        matches = set()
        for band, buckets in enumerate(seen):
            first = buckets.setdefault((group, values[band * rows : (band + 1) * rows].tobytes()), number)
            if first != number:
                matches.add(first)
        yield from ((first, number) for first in sorted(matches))


@dataclass
class Decontaminate:
    """Called with a row; raises Drop when its problem is one of `files`, or shares `ngram` words in a row with one."""

    files: list[EvaluationFile]
    ngram: int
    _whole: dict[str, str] = field(default_factory=dict)
    _runs: dict[tuple, str] = field(default_factory=dict)
    _ready: bool = False

    def prepare(self) -> None:
        """Read the evaluation files, once. Raises UserError for one that cannot be read: to go on would be silent."""
        if self._ready:
            return
        for file in self.files:
            for number, raw in enumerate(raw_rows(file.path)):
                where = f"{file.path}, row {number}"
                try:
                    tokens = words(bare_problem(text(at(raw, file.problem), "problem")))
                except Drop as drop:
                    raise UserError(
                        f"{where} of decontaminate.files has no problem ({drop}): set `problem` there to its column."
                    ) from None
                self._whole[" ".join(tokens)] = where
                self._runs.update((run, where) for run in self._runs_of(tokens))
        self._ready = True

    def __call__(self, row: Row) -> Row:
        self.prepare()
        tokens = words(row.problem)
        if where := self._whole.get(" ".join(tokens)):
            raise Drop("in an evaluation set", where)
        for run in self._runs_of(tokens):
            if run in self._runs:
                raise Drop("shares words with an evaluation set", f"{self.ngram} in a row, {self._runs[run]}")
        return row

    def _runs_of(self, found: list[str]) -> set[tuple]:
        # The words themselves: their hashes are others in the next process.
        return {tuple(found[i : i + self.ngram]) for i in range(len(found) - self.ngram + 1)}
