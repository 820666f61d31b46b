"""What a hostile program is, and the words that the programs share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

# A program prints this, with what it reached, when it got where it must not get.
ESCAPED = "ESCAPED"
SUCCESS, ERROR, TIMEOUT = frozenset({"success"}), frozenset({"error"}), frozenset({"timeout"})
MEMORY, OUTPUT, KILLED = frozenset({"memory"}), frozenset({"output"}), frozenset({"killed"})
# The program ends well if the call is refused with an error, by SIGSYS if the filter kills.
REFUSED = SUCCESS | KILLED
PROCESS_ONLY = {"process": "level process does not hide files, processes or the network"}
BELOW_NAMESPACES = {
    level: "only namespaces give a run a file system, processes and ipc of its own" for level in ("process", "landlock")
}


@dataclass(frozen=True)
class Case:
    """One program and what must come of it.

    `source` may name {token}, {secret}, {folder}, {port}, {udp}, {unix}, {abstract}, {victim}, {server} and {checkout};
    `hostile_world.World` says what they are. `open_at` maps the levels that cannot contain it to the reason. `slow`
    ones take 0.3 s or more. `neighbour` runs beside it and must print "unharmed". `strikes_all` ones hit every process they
    see; they run only where the runner has proved that a run sees none of this host. `late`: the neighbour begins when the
    case has run for a while, so that all that a run begins with is needed then. `session`: the case runs in one.
    """

    name: str
    source: str
    statuses: frozenset[str] = SUCCESS
    stdout: str | None = None
    value: str | None = None
    check: Callable | None = None
    open_at: Mapping[str, str] = field(default_factory=dict)
    slow: bool = False
    strikes_all: bool = False
    neighbour: str | None = None
    late: bool = False
    session: bool = False
    timeout_s: float = 30.0
    files: Mapping[str, bytes] = field(default_factory=dict)
    fetch_files: tuple[str, ...] = ()


def timed_out(name: str, source: str, **others) -> Case:
    """A program that only the clock ends."""
    return Case(name, source, others.pop("statuses", TIMEOUT), slow=True, timeout_s=0.5, **others)


# `attempt("what", action)` tells whether `action` worked; an OSError or the like is the sandbox doing its work.
ATTEMPT = """
def attempt(what, action):
    try:
        found = action()
    except BaseException as error:
        print(what, type(error).__name__)
    else:
        print("ESCAPED", what, repr(found)[:80])
"""
# `call(number, *arguments)`: a raw system call; `refused` says ESCAPED when it returned no error.
SYSCALL = """
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return -ctypes.get_errno() if result == -1 else result
def refused(what, number, *arguments):
    result = call(number, *arguments)
    print(*((what, errno.errorcode.get(-result, result)) if result < 0 else ("ESCAPED", what, result)))
"""


def attempts(name: str, prelude: str, *actions: str, **others) -> Case:
    """A case that tries each of `actions` (expressions), none of which may work."""
    lines = [f"attempt({action!r}, lambda: {action})" for action in actions]
    return Case(name, "\n".join([ATTEMPT, prelude, *lines]), **others)
