"""What DAPO (arXiv 2503.14476) puts around an outcome reward: soft overlong punishment and the group filter.

Pure functions; the trainer decides which of them a recipe uses."""

import math
from collections.abc import Sequence


def soft_overlong(length: int, max_length: int, cache: int) -> float:
    """Length penalty in [-1, 0], to be added to the outcome reward (arXiv 2503.14476, Eq. 13). All lengths in tokens.

        0                                  if length <= max_length - cache
        ((max_length - cache) - length) / cache   if max_length - cache < length <= max_length
        -1                                 if length > max_length

    The paper uses max_length = 20480 and cache = 4096: 16384 tokens cost nothing, 18432 cost 0.5, 20480 cost 1.
    Raises ValueError unless 0 < cache <= max_length and length >= 0.
    """
    if not 0 < cache <= max_length or length < 0:
        raise ValueError(f"need 0 < cache <= max_length and length >= 0, got {cache=}, {max_length=}, {length=}")
    free = max_length - cache
    if length <= free:
        return 0.0
    return (free - length) / cache if length <= max_length else -1.0


def keep_group(scores: Sequence[float]) -> bool:
    """Whether a prompt's group can teach anything: False when all rewards are equal (all advantages would be 0).

    Dynamic sampling of DAPO (arXiv 2503.14476, Eq. 11). Raises ValueError for an empty group or a reward
    that is not finite.
    """
    _check(scores)
    return min(scores) != max(scores)


def keep_by_accuracy(accs: Sequence[float], low: float, high: float) -> bool:
    """Whether `low < mean(accs) < high`, both ends excluded: neither too hard nor too easy.

    ZeroTIR (arXiv 2505.07773) uses 0.05 and 0.8. Raises ValueError as `keep_group` does, and unless low < high.
    """
    _check(accs)
    if not low < high:
        raise ValueError(f"need low < high, got {low=}, {high=}")
    return low < sum(accs) / len(accs) < high


def _check(values: Sequence[float]) -> None:
    if len(values) == 0:
        raise ValueError("a group without responses")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a group with a reward that is not finite: {list(values)}")
