"""Runs hostile programs in one sandbox and judges what came of them."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.local import LocalSandbox
from tests.support.hostile.hostile_case import ESCAPED, Case
from tests.support.hostile.hostile_world import World

LEVELS = ("process", "landlock", "namespaces")
MEMORY_MB, OUTPUT_BYTES = 256, 4096
# A namespace beyond the spares is ended so soon: until it is, nobody can tell it from one that a program left.
KEEP_S = 0.02
# How long a run's remains may take to be gone, and how long a run may hang past its limit, on a busy machine.
SETTLE_S, HANG_S = 10.0, 60.0
LATE_S = 0.4
PR_SET_CHILD_SUBREAPER = 36
# Prints everything that one run could have changed for the next.
CHECK = """
import builtins, decimal, gc, json, locale, math, os, random, re, resource, signal, sys, threading, warnings
import numpy, sympy
def limits():
    return [resource.getrlimit(getattr(resource, "RLIMIT_" + name)) for name in ("NOFILE", "FSIZE", "STACK", "CPU", "CORE")]
def listed(path):
    try:
        return os.listdir(path)
    except OSError:
        return []
niceness = os.getpriority(os.PRIO_PROCESS, 0) % 10  # the sandbox adds 10 to what runs for long
facts = dict(
    numpy=[int(numpy.sum([1, 2, 3])), numpy.pi, str(numpy.geterr()), str(numpy.array([1 / 3])), numpy.float64(2).itemsize],
    sympy=[int(sympy.factorial(10)), str(sympy.expand("(x + 1)**2")), int(sympy.Integer(7) + 1)],
    values=[math.sqrt(2), math.pi, len("abc"), "abc".upper(), (7).bit_length(), 7 + 1, True is not False, int(True), hash("a")],
    decimal=str(decimal.Decimal(1) / 3), locale=locale.setlocale(locale.LC_ALL), text=re.sub("a", "b", "aaa"),
    interpreter=[sys.getrecursionlimit(), sys.getswitchinterval(), sys.get_int_max_str_digits(), len(sys.path), len(sys.meta_path)],
    modules=[len(sys.modules), hash(tuple(sorted(sys.modules))), "hostile" in sys.modules, "hostile" in str(sys.path)],
    hooks=[sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile()],
    collector=[gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
    warnings=len(warnings.filters), threads=[threading.active_count(), len(listed("/proc/self/task"))],
    signals=[str(signal.getsignal(number)) for number in range(1, 32)], mask=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    process=[limits(), niceness, sorted(os.sched_getaffinity(0)), os.umask(0o22), signal.getitimer(0)],
    environment=sorted(os.environ), folder=[os.listdir("."), listed(os.environ["HOME"]), listed(os.environ["TMPDIR"])],
    descriptors=[fd for fd in range(256) if os.path.exists(f"/proc/self/fd/{fd}")],
    shared=[name for name in listed("/dev/shm") + listed("/tmp") if "{token}-left" in name],
)
facts["random"] = random.random() != 0.5 and 0 <= random.random() < 1
print(json.dumps(facts, sort_keys=True))
6 * 7
"""


SEES_NOBODY = """
import os
try:
    os.kill({victim}, 0)
    seen = True
except ProcessLookupError:
    seen = os.path.exists("/proc/{victim}") or os.path.exists("/proc/{server}") or os.getpid() > 100
print("somebody" if seen else "nobody")
"""


@dataclass
class Verdict:
    """What one case did at one level. `known` are escapes that the case's `open_at` names; the rest are failures."""

    name: str
    level: str
    skipped: bool = False
    escaped: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    wrong_status: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    poisoned: list[str] = field(default_factory=list)
    duration_s: float = 0.0

    def failures(self) -> list[str]:
        kinds = ("escaped", "wrong_status", "left", "poisoned")
        return [f"{kind}: {text}" for kind in kinds for text in getattr(self, kind)]


class Range:
    """One sandbox at `level` with a world of targets around it. Not for use from several tasks at once.

    Raises UserError from `start` when this machine does not offer the level.
    """

    def __init__(self, level: str):
        self.level = level

    async def start(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.old_tempdir = tempfile.tempdir
        self.folder = tempfile.tempdir = tempfile.mkdtemp(prefix="retool-range-")
        # As /tmp does, it lets the user id through under which a server of root runs programs.
        os.chmod(self.folder, 0o711)
        self.world = None
        self.strangers = set(children(os.getpid()))
        self.box = make_box(self.level)
        self.box._options["keep_s"] = KEEP_S
        await self.box.start()
        if self.box.level != self.level:
            raise UserError(f"this machine offers {self.box.level!r} but not {self.level!r}")
        self.world = World()
        self.strangers.add(self.world.victim.pid)
        self.check = CHECK.replace("{token}", self.world.token)
        await self.box.run(self.check)
        await self._settle()
        self.expected = await self._fingerprint()
        self.again = await self._fingerprint()
        if self.expected != self.again or '"numpy": [6, 3.14' not in self.expected:
            raise AssertionError(f"the check program is not deterministic: {self.expected} {self.again}")
        await self._take_baseline()

    async def close(self) -> None:
        await self.box.close()
        if self.world is not None:
            self.world.close()
        tempfile.tempdir = self.old_tempdir
        shutil.rmtree(self.folder, ignore_errors=True)

    async def attempt(self, case: Case) -> Verdict:
        verdict = Verdict(case.name, self.level)
        if case.strikes_all and not (self.level == "namespaces" and await self._sees_nobody()):
            verdict.skipped = True
            return verdict
        started = time.monotonic()
        servers = self._servers()
        neighbour = asyncio.create_task(self._run(case.neighbour, LATE_S * case.late)) if case.neighbour else None
        if neighbour and not case.late:
            await asyncio.sleep(0.15)
        options = {"timeout_s": case.timeout_s, "fetch_files": [self._aimed(path) for path in case.fetch_files]}
        if case.session:
            options["session"] = self.world.token
        result = await self._run(case.source, **options)
        if case.session:
            await self.box.end_session(self.world.token)
        if neighbour:
            beside = await neighbour
            if (beside.status, beside.stdout) != ("success", "unharmed\n"):
                verdict.escaped.append(f"the run beside it ended with {beside.status}: {beside.stdout[-80:]!r}")
        verdict.duration_s = time.monotonic() - started
        self._judge(case, result, verdict)
        verdict.escaped += self.world.damage()
        self.strangers.add(self.world.victim.pid)
        verdict.left += self.world.remains()
        try:
            found = await self._fingerprint()
        except AssertionError as error:
            found = str(error)
        if found != self.expected:
            verdict.poisoned.append(difference(self.expected, found))
        if self._servers() != servers:
            verdict.escaped.append("the server was ended or replaced")
            await self._take_baseline()
        else:
            verdict.left += await self._settle(self.baseline)
        if case.open_at.get(self.level):
            if verdict.left:
                # What it left is not the next program's doing.
                await self._take_baseline()
            verdict.known = verdict.escaped + verdict.left
            verdict.escaped, verdict.wrong_status, verdict.left = [], [], []
        return verdict

    async def _sees_nobody(self) -> bool:
        """Whether a run can neither signal nor list a process of this host: asked before each strike, never assumed."""
        result = await self._run(SEES_NOBODY)
        return result.status == "success" and result.stdout == "nobody\n"

    def _judge(self, case: Case, result: Result, verdict: Verdict) -> None:
        texts = (result.stdout, result.stderr, result.value or "")
        # Tracebacks quote the source, whose text names the word as well: only whole lines that begin with it count.
        if any(line.startswith(ESCAPED) for text in texts[::2] for line in text.splitlines()):
            verdict.escaped.append(
                next(line for t in texts[::2] for line in t.splitlines() if line.startswith(ESCAPED))
            )
        problem = case.check(result) if case.check else None
        if problem:
            (verdict.escaped if problem.startswith(ESCAPED) else verdict.wrong_status).append(problem)
        last = result.stderr.strip().split("\n")[-1][:120]
        # Where the sandbox refuses what the program did not expect to be refused, the program ends with that.
        refused = result.status == "error" and "success" in case.statuses and last.startswith("PermissionError")
        if str(result.status) not in case.statuses and not refused:
            verdict.wrong_status.append(f"{result.status} instead of {'/'.join(sorted(case.statuses))} ({last})")
        elif case.stdout is not None and not refused and result.stdout != case.stdout:
            verdict.wrong_status.append(f"printed {result.stdout[:80]!r}")
        elif case.value is not None and result.value != case.value:
            verdict.wrong_status.append(f"has the value {result.value!r}")
        if result.status not in ("success", "output") and not result.observation().strip():
            verdict.wrong_status.append("says nothing to the policy")
        for text in texts:
            if len(text) > OUTPUT_BYTES + 500:
                verdict.wrong_status.append(f"a text of {len(text)} characters came back")

    async def _run(self, source: str, after_s: float = 0.0, **options) -> Result:
        await asyncio.sleep(after_s)
        code = self._aimed(source)
        timeout_s = options.setdefault("timeout_s", 30.0)
        try:
            return await asyncio.wait_for(self.box.run(code, **options), timeout_s + HANG_S)
        except UserError as error:
            # A path outside of the run's folder: refused before the program starts.
            return Result(Status.ERROR, "", str(error), None, 0.0)

    def _aimed(self, text: str) -> str:
        for name, value in self.world.targets(next(iter(self._servers()), 1)).items():
            text = text.replace("{" + name + "}", value)
        return text

    async def _fingerprint(self) -> str:
        result = await self.box.run(self.check, timeout_s=60.0)
        if result.status != "success" or result.value != "42":
            raise AssertionError(f"the check program gave {result}")
        return result.stdout

    def _servers(self) -> frozenset[int]:
        for pid in set(children(os.getpid())) - self.strangers:
            # Orphans of ended helpers come to us, the subreaper. Ended ones are nobody's server.
            if state(pid) == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return frozenset(children(os.getpid())) - self.strangers

    def _state(self) -> dict[str, int]:
        """Counts that may not grow."""
        servers = self._servers()
        tree = [pid for server in servers for pid in descendants(server)]
        return {
            "processes": len(tree),
            "zombies": sum(state(pid) == "Z" for pid in tree),
            "descriptors of the server": sum(descriptors(pid) for pid in servers),
            "descriptors of the caller": descriptors(os.getpid()),
            "files": count_files(self.folder),
            "threads of the caller": len(os.listdir("/proc/self/task")),
        }

    async def _take_baseline(self) -> None:
        await self._settle()
        self.baseline = self._state()

    async def _settle(self, limit: dict[str, int] | None = None) -> list[str]:
        """Wait until the counts are at most `limit` (without: until they stay the same); what is still too much."""
        deadline = time.monotonic() + SETTLE_S
        last, same = None, 0
        while True:
            now = self._state()
            more = [
                f"{name}: {now[name]} instead of {limit[name]}" for name in now if limit and now[name] > limit[name]
            ]
            same = same + 1 if now == last else 0
            if (limit and not more) or (not limit and same >= 15) or time.monotonic() > deadline:
                return more
            last = now
            await asyncio.sleep(0.005 if limit else 0.02)


def make_box(level: str, **options) -> LocalSandbox:
    """A local sandbox at exactly this level, where the machine offers it."""
    options = {"timeout_s": 30.0, "memory_mb": MEMORY_MB, "max_output_bytes": OUTPUT_BYTES, "workers": 4} | options
    return LocalSandbox(max_isolation=level, **options)


def count_files(folder: str) -> int:
    """Entries below `folder`, however deep; what lies too deep to be named counts as one."""
    found, waiting = 0, [folder]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        found += len(entries)
        waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


def children(pid: int) -> list[int]:
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # It ended while we looked.
    return found


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0


def difference(expected: str, found: str) -> str:
    """The first place where two outputs of the check program differ."""
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), min(len(expected), len(found))
    )
    return f"{expected[max(0, at - 60) : at + 60]!r} became {found[max(0, at - 60) : at + 60]!r}"
