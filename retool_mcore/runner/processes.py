"""Finds and ends every process that a stage started, also those that left its process group.

Ray and vLLM start their workers in sessions of their own, so a signal to the stage's process group does not reach them.
A stage's environment carries RETOOL_STAGE_ID, which its children inherit; /proc tells who has it. Some workers rewrite
their title over their environment, so descendants seen while the stage ran are remembered too.
"""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

STAGE_ID = "RETOOL_STAGE_ID"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Loaded here: between fork and exec it is too late.
_LIBC = ctypes.CDLL(None, use_errno=True) if Path("/proc/self").exists() else None


@dataclass(frozen=True)
class Process:
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    started: int  # clock ticks after boot


def start(command: list[str], env: dict[str, str], output: Path | None = None) -> subprocess.Popen:
    """Starts `command` in a session of its own; both streams are appended to `output`, None: to where ours go.

    The kernel sends it SIGTERM should this process be killed: a stage must not go on without its launcher.
    """
    with output.open("ab") if output is not None else nullcontext() as log:
        return subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,
            preexec_fn=partial(signal_at_parents_death, signal.SIGTERM),
        )


def read(pid: int) -> Process | None:
    """The living process with this number; None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def signal_at_parents_death(signum: int) -> None:
    """Have the kernel send this process `signum` when its parent (the thread that forked it) dies."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signum)


def find(stage_id: str, known: Iterable[Process] = ()) -> set[Process]:
    """The living processes of a stage: marked ones, those of `known` that still live, and all their descendants."""
    parents: dict[int, tuple[int, Process]] = {}
    marked: set[int] = set()
    mark = f"{STAGE_ID}={stage_id}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):  # it ended while we looked, or belongs to another user
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] in "ZX":
                continue
            pid = int(entry.name)
            parents[pid] = (int(fields[1]), Process(pid, int(fields[19])))
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                marked.add(pid)
    known = set(known)
    pids = marked | {pid for pid, (_, process) in parents.items() if process in known}
    grown = True
    while grown:
        children = {pid for pid, (parent, _) in parents.items() if parent in pids} - pids
        pids |= children
        grown = bool(children)
    pids.discard(os.getpid())
    return {parents[pid][1] for pid in pids}


def stop(
    stage_id: str,
    known: Iterable[Process] = (),
    *,
    leader: subprocess.Popen | None = None,
    signum: int = signal.SIGTERM,
    grace_s: float = 20.0,
    hurry: Callable[[], bool] = lambda: False,
) -> None:
    """Ends a stage: `signum` to the leader's group, SIGTERM to what outlives the leader, SIGKILL after `grace_s`.

    Args:
        leader: the stage's first process; None when it is gone already.
        hurry: asked while waiting; true cuts the grace short (a second Ctrl-C).
    """
    known = find(stage_id, known) | set(known)  # before the leader goes: orphans have another parent
    if leader is not None and leader.poll() is None:
        _signal_group(leader.pid, signum)
    deadline = time.monotonic() + grace_s
    asked = False
    while (living := find(stage_id, known)) or (leader is not None and leader.poll() is None):
        known = living | set(known)
        if time.monotonic() >= deadline or hurry():
            break
        if not asked and (leader is None or leader.poll() is not None):
            _signal(living, signal.SIGTERM)
            asked = True
        time.sleep(0.1)
    deadline = time.monotonic() + 10.0  # one that hangs in a driver call dies only when the call returns
    while (living := find(stage_id, known)) and time.monotonic() < deadline:
        known = living | set(known)
        _signal(living, signal.SIGKILL)
        time.sleep(0.05)
    if leader is not None:
        _signal_group(leader.pid, signal.SIGKILL)
        leader.wait()


def end(children: Sequence[subprocess.Popen], grace_s: float) -> None:
    """SIGTERM to all, and SIGKILL to those that outlive `grace_s`."""
    for process in children:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in children:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _signal(processes: Iterable[Process], signum: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signum)


def _signal_group(group: int, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signum)
