"""Which level this host allows: found by doing it once, in a process that ends afterwards."""

import os
import signal
import sys
from collections.abc import Callable, Sequence

from retool_mcore.sandbox.isolation import landlock, namespaces, seccomp
from retool_mcore.sandbox.isolation.confine import TMP_OPTIONS, Confinement
from retool_mcore.sandbox.isolation.init import start_init
from retool_mcore.sandbox.isolation.syscalls import become

LEVELS = ("none", "process", "landlock", "namespaces")
# Nobody's id: programs of a server that root started do not even own what root owns. 65534 where ids are few.
STRANGERS = (0x7A000000, 65534)


def detect(
    base_dir: str, folders: list[str], strongest: str, hidden: Sequence[str] = ()
) -> tuple[str, str, int | None]:
    """(level, why it is not stronger or "", user id to `become` first) for a server whose folder is `base_dir`.

    `strongest` is the level to stop at. The folder's owner is changed to the user id. Programs of root's never keep
    root's id: where no other can read this Python, OSError is raised.
    """
    reason = "" if strongest == LEVELS[-1] else f"max_isolation is {strongest}"
    users = [*STRANGERS] if os.geteuid() == 0 else [None]
    for level in reversed(LEVELS[: LEVELS.index(strongest) + 1]):
        for uid in users:
            if uid is not None:
                try:
                    os.chown(base_dir, uid, uid)
                except OSError:
                    continue
            problem = _outcome(lambda: _try(level, uid, base_dir, folders, hidden))  # noqa: B023 (called at once)
            if not problem:
                return level, reason, uid
        reason = reason or f"{level}: {problem}"
    raise OSError(f"no user id but root's can run programs here ({reason}): put this Python where others may read it")


def _try(level: str, uid: int | None, base_dir: str, folders: list[str], hidden: Sequence[str]) -> None:
    if level == "none":
        become(uid)
        os.stat(sys.executable)
        with open(os.__file__, "rb"):
            return
    if not seccomp.supported():
        raise OSError(f"no seccomp filter for {os.uname().machine}")
    if level == "landlock" and not landlock.abi():
        raise OSError("the kernel has no Landlock")
    confinement = Confinement.of(level, folders, hidden=hidden)
    if level != "namespaces":
        become(uid)
        _check(confinement, None, base_dir)
        return
    namespaces.enter_server_namespaces(base_dir, folders, uid, hidden)
    pid, report = start_init(TMP_OPTIONS, folders)
    try:
        message = report.recv(4096).decode("utf-8", "replace")
        if message != "ok":
            raise OSError(message or "the first process of a run did not start")
        init = os.pidfd_open(pid)
        problem = _outcome(lambda: _check(confinement, init, namespaces.WORK_DIR), init)
        if problem:
            raise OSError(problem)
    finally:
        os.kill(pid, signal.SIGKILL)


def _check(confinement: Confinement, init: int | None, work_dir: str) -> None:
    confinement.enter(init, work_dir)
    os.stat(sys.executable)
    with open(os.__file__, "rb"), open("probe", "w"):
        os.unlink("probe")


def _outcome(attempt: Callable[[], None], init: int | None = None) -> str:
    """Return what goes wrong when a child process makes the attempt, "" for nothing."""
    reader, writer = os.pipe()
    child = os.fork() if init is None else namespaces.fork_into(init)
    if child == 0:
        try:
            attempt()
            os._exit(0)
        except BaseException as error:
            os.write(writer, (str(error) or type(error).__name__).encode()[:1000])
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, errors="replace") as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    return "" if status == 0 else text or f"ended with status {status}"
