"""HumanEval's official tests inside the sandbox, in a process that never runs what a policy wrote.

`begin` starts a second interpreter before the problem is read, and gives up the folder that both can write as a place
to import from. The policy's program is sent to it and runs there; the tests run here, and call a stand-in that passes
arguments and results over two pipes as plain values (plain.py). So a program can read neither the tests nor what they
expect, cannot reach the channel of the verdict, and cannot answer with an object of its own that equals everything. It
may know that it is called, and return what it likes: that is what the tests judge.
"""

import contextlib
import ctypes
import io
import json
import linecache
import os
import subprocess
import sys
from typing import Any

from retool_mcore.official.inside.plain import decode, encode

_PR_SET_DUMPABLE = 4
MAX_REPLY_CHARS = 2**24
# In the second interpreter: `plain` is sent to it, since it sees no file of ours.
_SERVANT = """
import json, os, sys
sys.path += {folders}
wanted, replies = os.fdopen({wanted}, "r"), os.fdopen({replies}, "w")
asked = json.loads(wanted.readline())
plain = {{}}
exec(asked["plain"], plain)
program = {{"__name__": "__main__"}}
def answer(**reply):
    replies.write(json.dumps(reply) + "\\n")
    replies.flush()
try:
    exec(compile(asked["program"], "<answer>", "exec"), program)
    function = program[asked["entry_point"]]
except BaseException as error:
    answer(error=type(error).__name__)
    os._exit(1)
answer(value=None)
for line in wanted:
    arguments, keywords = plain["decode"](json.loads(line))
    try:
        answer(value=plain["encode"](function(*arguments, **keywords)))
    except BaseException as error:
        answer(error=type(error).__name__)
"""


class Failed(Exception):
    """Raised in the tests where the policy's program raised, ended, or returned what is no plain value."""


class _Servant:
    """The second interpreter, which runs one program and its function's calls."""

    def __init__(self):
        wanted, self._to = os.pipe()
        self._from, replies = os.pipe()
        # Without `site`, whose files of a large environment take longer than most programs.
        source = _SERVANT.format(wanted=wanted, replies=replies, folders=[path for path in sys.path if path])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", source],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[wanted, replies],
        )
        os.close(wanted)
        os.close(replies)
        self._writer, self._reader = os.fdopen(self._to, "w"), os.fdopen(self._from, "r", errors="replace")

    def ask(self, value: Any) -> Any:
        """Return the reply's value. Raises Failed."""
        try:
            self._writer.write(json.dumps(value) + "\n")
            self._writer.flush()
            reply = json.loads(self._reader.readline(MAX_REPLY_CHARS))
            return decode(reply["value"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise Failed("the program raised, ended, or returned no plain value") from error

    def call(self, *arguments, **keywords):
        """The function that the tests call."""
        return self.ask(encode([list(arguments), keywords]))


_servant: _Servant | None = None


def begin() -> None:
    """Start the second interpreter. Whatever it writes, this process imports nothing of it and shows it no memory."""
    global _servant
    sys.path[:] = [path for path in sys.path if path and os.path.realpath(path) != os.path.realpath(os.getcwd())]
    if ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        raise OSError("this process cannot be shut to others")
    _servant = _Servant()


def score(prompt: str, program: str, test: str, entry_point: str) -> float:
    """Return 1 iff the official tests pass, else 0.

    prompt: the problem's, whose other functions some tests use; program: what the policy is taken to have written,
    whole; test: the text that defines `check`.
    """
    source = "".join(linecache.getlines(f"<{encode.__module__}>"))
    try:
        _servant.ask({"program": program, "entry_point": entry_point, "plain": source})
        tests: dict[str, Any] = {}
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(prompt, "<prompt>", "exec"), tests)
            exec(compile(test, "<test>", "exec"), tests)
            tests["check"](_servant.call)
    except Exception:
        return 0.0
    return 1.0
