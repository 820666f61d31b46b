"""Near duplicates by MinHash with banding (Broder 1997), over numpy.

A signature holds, for each of `PERMUTATIONS` hash functions, the least hash of the text's shingles; two signatures
agree in a place with the probability of the sets' Jaccard similarity. Texts that agree in all places of one band are
compared exactly.
"""

import re
import zlib
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

PERMUTATIONS, BANDS = 128, 32
_rng = np.random.default_rng(20504)
# Multiply-shift hashing (Dietzfelbinger et al. 1997) asks for odd multipliers.
_A = _rng.integers(0, 2**63, PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
_B = _rng.integers(0, 2**63, PERMUTATIONS, dtype=np.uint64)
_WORD = re.compile(r"\\[a-z]+|\w+|[^\s\w]", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
# Typesetting that says nothing about the problem.
_NOISE = frozenset((r"\left", r"\right", r"\displaystyle", r"\text", r"\mathrm", *"${}\\.,?!:;"))


def words(text: str) -> list[str]:
    """Words, commands and symbols of a problem, case folded, without typesetting."""
    return [word for word in _WORD.findall(text.casefold()) if word not in _NOISE]


def numbers(text: str) -> tuple[str, ...]:
    """The numbers of a problem: two problems that differ in one are two problems, however alike they read."""
    return tuple(sorted(_NUMBER.findall(text)))


def shingles(text: str, size: int) -> np.ndarray:
    """Sorted distinct hashes of all runs of `size` words: (shingles,) uint32, at least one."""
    found = words(text)
    runs = {" ".join(found[i : i + size]) for i in range(max(1, len(found) - size + 1))}
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
        found = set()
        for band, buckets in enumerate(seen):
            first = buckets.setdefault((group, values[band * rows : (band + 1) * rows].tobytes()), number)
            if first != number:
                found.add(first)
        yield from ((first, number) for first in sorted(found))
