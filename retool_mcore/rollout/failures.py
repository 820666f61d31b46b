"""Why a rollout failed, in a form that travels from the worker in which it failed to whoever counts the failures."""

import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

FAILURE = "failure"  # what a failed rollout leaves under its prompt: its Cause
MESSAGE_CHARS = 400
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)')
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class Cause(NamedTuple):
    """An error: its class, its message, and the function that raised it ("" where that is not known)."""

    error: str
    message: str
    where: str

    def __str__(self) -> str:
        raised = f"{self.error}: {self.message}" if self.message else self.error
        return f"{raised} ({self.where})" if self.where else raised

    def __eq__(self, other: object) -> bool:
        """Messages may name the case, as KeyError does: the same error at the same place is the same cause."""
        return isinstance(other, Cause) and (self.error, self.where) == (other.error, other.where)

    def __hash__(self) -> int:
        return hash((self.error, self.where))


UNKNOWN = Cause("an error", "the log has its traceback", "")


def cause_of(error: BaseException) -> Cause:
    """Describe `error`, also one that Ray brings from another process."""
    remote = getattr(error, "cause", None)
    original = remote if isinstance(remote, BaseException) else error
    message = " ".join(str(original).split())
    return Cause(type(original).__name__, message[:MESSAGE_CHARS], _raised_in(error))


def most_common(causes: Iterable[Cause]) -> list[tuple[Cause, int]]:
    """The causes with their counts, the most frequent first."""
    return Counter(causes).most_common()


def _raised_in(error: BaseException) -> str:
    """The innermost function outside of installed packages, else the innermost, as "FILE, line N, in FUNCTION"."""
    frames = [match.group("file", "line", "function") for match in _FRAME.finditer(getattr(error, "traceback_str", ""))]
    frames = frames or [(f.filename, str(f.lineno), f.name) for f in traceback.extract_tb(error.__traceback__)]
    users = [frame for frame in frames if not frame[0].startswith((*_LIBRARIES, "<", sys.prefix))]
    if not frames:
        return ""
    file, line, function = (users or frames)[-1]
    return f"{Path(file).name}, line {line}, in {function}"
