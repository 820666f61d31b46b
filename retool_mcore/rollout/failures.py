"""Why a rollout failed, in a form that travels from the worker in which it failed to whoever counts the failures."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from retool_mcore.errors import describe, raised_in

FAILURE = "failure"  # what a failed rollout leaves under its prompt: its Cause


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


UNKNOWN = Cause("", "", "an error whose traceback is in the log")


def cause_of(error: BaseException) -> Cause:
    """Describe `error`, also one that Ray brings from another process."""
    remote = getattr(error, "cause", None)
    name = type(remote if isinstance(remote, BaseException) else error).__name__
    return Cause(name, raised_in(error), describe(error))


def most_common(causes: Iterable[Cause]) -> list[tuple[Cause, int]]:
    """The causes with their counts, the most frequent first."""
    return Counter(causes).most_common()
