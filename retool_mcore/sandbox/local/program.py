"""The program's run inside the child: as `__main__`, with its final expression displayed.

The process was forked from a warm server. State that the server shares with all runs and that a program could notice
(random state, streams, module search path) is renewed here.
"""
# It replaces the interpreter's own streams, and calls its shutdown.
# mypy: disable-error-code="attr-defined, misc, operator"

import builtins
import io
import linecache
import os
import random
import resource
import sys
import tempfile
import threading
import traceback
import types
from contextlib import suppress

from retool_mcore.sandbox.clip import clip
from retool_mcore.sandbox.display import FILENAME, displayed, strip_fences

DISPLAY = "__display__"
VALUE_FD = 4


class Interpreter:
    """Runs programs as `__main__` in `work_dir`; one after another they share their variables."""

    def __init__(self, work_dir: str, max_value_bytes: int):
        self.work_dir, self.max_value_bytes = work_dir, max_value_bytes
        self.process = os.getpid()
        self.shown: list[str] = []
        self.builtins = dict(vars(builtins))
        _renew(work_dir)
        self.main = types.ModuleType("__main__")
        self.main.__file__ = FILENAME  # the source is in linecache, where inspect looks for it
        sys.modules["__main__"] = self.main
        # The pages that compiling and running write to are copied now, while nobody waits.
        exec(_compiled("None"), {DISPLAY: self._display})

    def execute(self, code: str) -> int | None:
        """Run `code` to its end, non-daemon threads included; its exit code, or None when its memory did not suffice.

        A traceback goes to descriptor 2, the repr of a final expression, clipped to `max_value_bytes`, to VALUE_FD.
        """
        code = strip_fences(code)
        linecache.cache[FILENAME] = (len(code), None, code.splitlines(keepends=True), FILENAME)
        self.shown.clear()
        self.main.__dict__[DISPLAY] = self._display
        exit_code: int | None = 0
        problem = ""
        try:
            program = _compiled(code)
            exec(program, self.main.__dict__)
            # What the interpreter does at its own end: thread pools are stopped, then threads are joined.
            threading._shutdown()
            _flush()
        except SystemExit as error:
            exit_code = _exit_code(error)
            problem = self._format(error) if exit_code else ""
        except MemoryError:
            resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
            exit_code = None
        except BaseException as error:
            problem, exit_code = self._format(error), 1
        # What follows needs them, whatever the program has made of them.
        vars(builtins).update(self.builtins)
        _flush()
        if problem:
            write_all(2, problem.encode("utf-8", "replace"))
        elif exit_code == 0 and self.shown and os.getpid() == self.process:
            write_all(VALUE_FD, self.shown[0].encode("utf-8", "replace"))
        return exit_code

    def _display(self, value: object) -> None:
        if value is not None:
            self.shown.append(clip(repr(value), self.max_value_bytes))

    def _format(self, error: BaseException) -> str:
        try:
            return clip(_format(error, self.work_dir), self.max_value_bytes)
        except BaseException:
            # The program has put its own things in the place of what formatting needs.
            return f"{type(error).__name__}: its traceback cannot be formatted\n"


def _exit_code(error: SystemExit) -> int:
    """Return the interpreter's exit code: nothing is 0, a number itself, anything else 1."""
    if error.code is None:
        return 0
    # Only these compare and calculate without other code: another type may be the program's own.
    if type(error.code) not in (int, bool):
        return 1
    return error.code & 0xFF if -(2**63) <= error.code < 2**63 else 0xFF


def _compiled(code: str) -> types.CodeType:
    # Compiling may exhaust the parser's own stack; that is the program's error, not the memory limit's.
    try:
        return compile(displayed(code, DISPLAY), FILENAME, "exec", dont_inherit=True)
    except MemoryError:
        raise SyntaxError("the program is nested too deeply") from None


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes, as far as the program has not closed the descriptor."""
    left = memoryview(data)
    with suppress(OSError):
        while left:
            left = left[os.write(fd, left) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # The program closed or replaced it.
            stream.flush()


def _renew(work_dir: str) -> None:
    # Line buffering: what was printed before a time-out is not lost with the process.
    sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", line_buffering=True)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.argv = [FILENAME]
    sys.path.insert(0, work_dir)
    os.environ["HOME"] = os.environ["TMPDIR"] = work_dir
    tempfile.tempdir = None
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "sympy.core.random" in sys.modules:
        sys.modules["sympy.core.random"].rng.seed()


def _format(error: BaseException, work_dir: str) -> str:
    """The traceback with only the program's own frames: the policy must see its own line, not those of libraries."""
    formatted = traceback.TracebackException.from_exception(error)
    chain = [formatted]
    while chain:
        link = chain.pop()
        own = [f for f in link.stack or () if f.filename == FILENAME or f.filename.startswith(work_dir + "/")]
        link.stack = traceback.StackSummary.from_list(own) if own else None
        chain += [following for following in (link.__cause__, link.__context__) if following is not None]
        chain += link.exceptions or ()
    return "".join(formatted.format())
