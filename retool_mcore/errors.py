"""Errors that the user can correct, where an error comes from, and whether a thing has failed from the start."""

import re
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

ALIKE = 8  # trajectories (or calls of as many) that fail with one error before anything worked
_MESSAGE_CHARS = 400
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)')
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_PACKAGE = str(Path(__file__).parent)


class UserError(Exception):
    """Wrong input, found before any engine starts.

    The message is one or two plain sentences: what was wrong, what was expected, what to do. The command line prints it
    without a traceback and exits with code 2.
    """


class NeverWorked(UserError):
    """Error that the first trajectories' calls met every time: the rest would fail as well."""


class FirstErrors:
    """Whether a reward, a tool or an environment has failed alike since the start.

    `alike` callers that fail with one error at one line, on at least `inputs` different inputs and before any call has
    worked, make it `NeverWorked`. From the first call that works on, errors are single cases and are not counted.
    """

    def __init__(self, alike: int = ALIKE, inputs: int = 2):
        self.alike, self.inputs, self.works = alike, inputs, False
        self._error: tuple = ()
        self._callers: set[str] = set()
        self._given: set[str] = set()

    def worked(self) -> None:
        self.works = True

    def failed(self, what: str, error: tuple, described: str, caller: str, given: str | None = None) -> None:
        """Count an error of `caller`, as a trajectory. Raises NeverWorked, which names `what` and what is `described`.

        error: equal for errors that count as the same (see `identity`). given: the input on which it failed, None where
        there is none: what fails on one input may work on another.
        """
        if self.works:
            return
        if error != self._error:
            self._error, self._callers, self._given = error, set(), set()
        self._callers.add(caller)
        self._given.add(given or "")
        if len(self._callers) >= self.alike and (given is None or len(self._given) >= self.inputs):
            raise NeverWorked(
                f"{what} has failed {len(self._callers)} times of {len(self._callers)} with the same error: "
                f"{described}. Correct it and give the same command again."
            )


def identity(error: BaseException, message: bool = False) -> tuple[str, ...]:
    """Return what is equal for two errors of one class from one line; `message`: and with one message."""
    return type(error).__name__, raised_in(error), *([str(error)] if message else [])


def describe(error: BaseException) -> str:
    """Return the error's class, message and place as "TypeError: no number (FILE, line N, in FUNCTION)"."""
    cause = getattr(error, "cause", None)  # of an error that Ray brings from another process
    original = cause if isinstance(cause, BaseException) else error
    message, place = " ".join(str(original).split())[:_MESSAGE_CHARS], raised_in(error)
    named = f"{type(original).__name__}: {message}" if message else type(original).__name__
    return f"{named} ({place})" if place else named


def raised_in(error: BaseException) -> str:
    """Return the innermost function of the user's code, else of this package, else of any, as "FILE, line N, in NAME".

    "" where the error has no traceback.
    """
    frames = [match.group("file", "line", "function") for match in _FRAME.finditer(getattr(error, "traceback_str", ""))]
    frames = frames or [(f.filename, str(f.lineno), f.name) for f in traceback.extract_tb(error.__traceback__)]
    if not frames:
        return ""
    local = [frame for frame in frames if not frame[0].startswith((*_LIBRARIES, "<", sys.prefix))]
    users = [frame for frame in local if not frame[0].startswith(_PACKAGE)]
    file, line, function = (users or local or frames)[-1]
    return f"{Path(file).name}, line {line}, in {function}"


def no_run(folder: Any) -> UserError:
    """Return the error of a command that looks at a run, for a folder that holds none."""
    return UserError(f"no run in {folder}: give the folder that holds sft, rl and eval, as in runs/quickstart.")


def refused_value(error: Any) -> str:
    """Return the first refusal of a pydantic.ValidationError, as "dedup.words is 0, it should be greater than or equal
    to 1"."""
    first = error.errors()[0]
    key, message = ".".join(map(str, first["loc"])) or "the whole", first["msg"]
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"there is no key {key}"
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    value = f"{first['input']!r}"[:80]
    return f"{key} is {value}, it {message[6:]}" if message.startswith("Input ") else f"{key} is {value}: {message}"
