"""What runs inside the child: the program itself, as `__main__`, with its final expression displayed.

The process was forked from a warm server, so everything that the server shares with all runs and that a program could
notice (random state, streams, module search path) is renewed here.
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

from retool_mcore.sandbox.clip import clip
from retool_mcore.sandbox.display import FILENAME, displayed, strip_fences

DISPLAY = "__display__"


class Interpreter:
    """Runs programs as `__main__` in `work_dir`; one after another they share their variables."""

    def __init__(self, work_dir: str, max_value_bytes: int):
        self.work_dir = work_dir
        self.max_value_bytes = max_value_bytes
        self.shown: list[str] = []
        self.was_cut = False
        self.builtins = dict(vars(builtins))
        _renew(work_dir)
        self.main = types.ModuleType("__main__")
        self.main.__file__ = FILENAME  # the source is in linecache, where inspect looks for it
        sys.modules["__main__"] = self.main
        # The pages that compiling and running write to are copied now, while nobody waits.
        exec(_compiled("None"), {DISPLAY: self._display})

    def execute(self, code: str) -> dict:
        """Run `code` to its end, non-daemon threads included.

        Returns {status: "success" | "error" | "memory", value: str | None, was_cut: bool, traceback: str,
        exit_code: int}; `was_cut`: the value was longer than `max_value_bytes`.
        """
        code = strip_fences(code)
        linecache.cache[FILENAME] = (len(code), None, code.splitlines(keepends=True), FILENAME)
        self.shown.clear()
        self.main.__dict__[DISPLAY] = self._display
        report = {"status": "success", "value": None, "was_cut": False, "traceback": "", "exit_code": 0}
        try:
            program = _compiled(code)
            exec(program, self.main.__dict__)
            _finish()
        except SystemExit as error:
            report["exit_code"] = _exit_code(error)
            if report["exit_code"] or not _is_nothing(error.code):
                report.update(status="error", traceback=self._format(error))
        except MemoryError:
            resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
            report.update(status="memory", exit_code=1)
        except BaseException as error:
            report.update(status="error", traceback=self._format(error), exit_code=1)
        # The report needs them, whatever the program has made of them.
        vars(builtins).update(self.builtins)
        if self.shown and report["status"] == "success":
            report.update(value=self.shown[0], was_cut=self.was_cut)
        _flush()
        return report

    def _display(self, value: object) -> None:
        if value is not None:
            text = repr(value)
            self.shown.append(clip(text, self.max_value_bytes))
            self.was_cut = len(text.encode("utf-8", "replace")) > self.max_value_bytes

    def _format(self, error: BaseException) -> str:
        try:
            return clip(_format(error, self.work_dir), self.max_value_bytes)
        except BaseException:
            # The program has put its own things in the place of what formatting needs.
            return f"{type(error).__name__}: its traceback cannot be formatted\n"


def _exit_code(error: SystemExit) -> int:
    """What the interpreter makes of it: nothing is 0, a number itself, anything else 1."""
    if error.code is None:
        return 0
    return error.code & 0xFF if _is_number(error.code) else 1


def _is_nothing(code: object) -> bool:
    return code is None or (_is_number(code) and code == 0)


def _is_number(code: object) -> bool:
    # Only these compare and calculate by themselves: another type may be the program's own.
    return type(code) in (int, bool)


def _compiled(code: str) -> types.CodeType:
    # Compiling may exhaust the parser's own stack; that is the program's error, not the memory limit's.
    try:
        return compile(displayed(code, DISPLAY), FILENAME, "exec", dont_inherit=True)
    except MemoryError:
        raise SyntaxError("the program is nested too deeply") from None


def _finish() -> None:
    # What the interpreter does at its own end: thread pools are told to stop, then threads are waited for.
    threading._shutdown()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # The program closed or replaced it.


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
