"""Why a rollout failed, in a form that travels from the worker in which it failed to whoever counts the failures."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from retool_mcore.errors import ALIKE, FirstErrors, describe, raised_in

ROLLOUTS = "every rollout so far"  # what FirstErrors names


class Cause(NamedTuple):
    """An error: its class, the function that raised it ("" where that is not known), and both with the message."""

    error: str
    where: str
    described: str

    def __str__(self) -> str:
        return self.described

    def __eq__(self, other: object) -> bool:
        """Messages may name the case, as KeyError's does: the same error at the same place is the same cause."""
        return isinstance(other, Cause) and self[:2] == other[:2]

    def __hash__(self) -> int:
        return hash(self[:2])


def cause_of(error: BaseException) -> Cause:
    """Describe `error`, also one that Ray brings from another process."""
    remote = getattr(error, "cause", None)
    name = type(remote if isinstance(remote, BaseException) else error).__name__
    return Cause(name, raised_in(error), describe(error))


def most_common(causes: Iterable[Cause]) -> list[tuple[Cause, int]]:
    """The causes with their counts, the most frequent first."""
    return Counter(causes).most_common()


def expect_prompts(first: FirstErrors, prompts: int) -> None:
    """Set of how many of `prompts` prompts, and in how many rollouts, an error must be the first."""
    prompts = max(1, prompts)
    first.inputs, first.alike = min(ALIKE, prompts), min(ALIKE, 2 * prompts)


class ScoringError(Exception):
    """A reward, or what else scores a trajectory, raised before any trajectory was scored; `error`: `describe`'s."""

    def __init__(self, error: str):
        message, _, place = error.rpartition(" (")
        super().__init__(message or error)
        file, _, rest = place.removesuffix(")").partition(",")
        self.traceback_str = f'File "{file}",{rest}' if message else ""


class GroupFailed(Exception):
    """Rollouts of a group raised. failures: (number of the rollout in the group, its Cause); rollouts: of the group."""

    def __init__(self, failures: Sequence[tuple[int, Cause]], rollouts: int):
        super().__init__(failures, rollouts)
        self.failures, self.rollouts = failures, rollouts

    def __str__(self) -> str:
        return f"{len(self.failures)} of {self.rollouts} rollouts: {self.failures[0][1]}"
