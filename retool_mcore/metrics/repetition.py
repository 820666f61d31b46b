"""How much a policy repeats itself, on token ids."""

from collections.abc import Iterable, Sequence

import numpy as np

NGRAM = 16  # tokens: longer than the idioms of prose and code, shorter than a sentence that goes round in circles
_BASE = 0x9E3779B97F4A7C15  # odd, so that no token's part of a 64-bit hash is lost


def repeated_share(ids: Sequence[int], spans: Iterable[tuple[int, int]], n: int = NGRAM) -> float | None:
    """1 - distinct n-grams / n-grams of `ids` (tokens,), counted inside each of `spans`, never across two of them.

    None when no span holds n tokens. n must be a power of two. N-grams are compared by a 64-bit hash.
    """
    if n < 1 or n & (n - 1):
        raise ValueError(f"n must be a power of two, got {n}")
    ids = np.asarray(ids)
    hashes = [_hashes(ids[start:end], n) for start, end in spans if end - start >= n]
    if not hashes:
        return None
    grams = np.sort(np.concatenate(hashes))
    return int(np.count_nonzero(grams[1:] == grams[:-1])) / len(grams)


def _hashes(ids: np.ndarray, n: int) -> np.ndarray:
    """Hash of each window of n tokens, (tokens - n + 1,) uint64, by doubling the window."""
    # Small ids, mixed, so that sums of a few of them do not collide.
    hashes = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(_BASE)
    hashes ^= hashes >> np.uint64(29)
    width = 1
    while width < n:
        factor = np.uint64(pow(_BASE, width, 1 << 64))
        hashes = hashes[:-width] * factor + hashes[width:]
        width *= 2
    return hashes
