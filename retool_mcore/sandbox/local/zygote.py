"""The warm interpreter: imports NumPy and the like once, then forks itself for every program.

server -> zygote: "fork" + JSON {work_dir}, with descriptors [init's pidfd,] stdout, stderr, control,
                  value
                  "kill" + JSON {pid}: kill the run that this program began (where there is no pid namespace)
zygote -> server: JSON {error} once, then {started: pid} for each fork in order, {ended: pid, status} for each end
"""

import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from retool_mcore.sandbox.isolation import limits, namespaces
from retool_mcore.sandbox.isolation.confine import Confinement
from retool_mcore.sandbox.isolation.syscalls import adopt_orphans, set_dumpable
from retool_mcore.sandbox.local.child import be_program
from retool_mcore.sandbox.local.warm import load_modules, settle, warm_up

MAX_MESSAGE = 4096


def start_zygote(confinement: Confinement, options: Mapping) -> tuple[int, socket.socket]:
    """(process id, socket) of a new warm interpreter; of the options (server.serve) it takes preload, modules and
    max_output_bytes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    try:
        os.dup2(theirs.fileno(), 3)
        os.closerange(4, 1 << 20)
        _Zygote(socket.socket(fileno=3), confinement, options["max_output_bytes"]).serve(options)
    finally:
        os._exit(1)


@dataclass(eq=False)
class _Zygote:
    server: socket.socket
    confinement: Confinement
    max_value_bytes: int

    def __post_init__(self):
        self.running: set[int] = set()
        # Runs without a pid namespace whose first process has ended: {its id: exit status}.
        self.ending: dict[int, int] = {}

    def serve(self, options: Mapping) -> None:
        adopt_orphans()
        preload = options["preload"]
        error = _preload(preload) or warm_up(preload) or load_modules(options["modules"])
        self._tell(error=error)
        if error:
            return
        set_dumpable(False)
        settle()
        self.mapped_bytes = limits.mapped_bytes()
        wake, wake_writer = socket.socketpair()
        wake.setblocking(False)
        wake_writer.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self.server, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if wake.fileno() in ready:
                wake.recv(4096)
                self._reap()
            if self.server.fileno() in ready and not self._obey():
                break
        for pid in (*self.running, *self.ending):
            _kill_group(pid)

    def _obey(self) -> bool:
        message, fds, _, _ = socket.recv_fds(self.server, MAX_MESSAGE, 5)
        if not message:
            return False
        wanted = json.loads(message[4:])
        if message[:4] == b"kill":
            if wanted["pid"] in self.running:
                _kill_group(wanted["pid"])
            return True
        init = fds.pop(0) if self.confinement.level == "namespaces" else None
        try:
            pid = os.fork() if init is None else namespaces.fork_into(init)
        except OSError:
            pid = -1
        if pid == 0:
            be_program(self.confinement, init, wanted["work_dir"], fds, self.mapped_bytes, self.max_value_bytes)
        for fd in (*fds, init):
            if fd is not None:
                os.close(fd)
        if pid > 0:
            self.running.add(pid)
        self._tell(started=pid)
        return True

    def _reap(self) -> None:
        grouped = self.confinement.level != "namespaces"
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid in self.running:
                    self.running.discard(pid)
                    if grouped:
                        _kill_group(pid)
                        self.ending[pid] = status
                    else:
                        self._tell(ended=pid, status=status)
        except ChildProcessError:
            pass
        for pid, status in list(self.ending.items()):
            if not _kill_group(pid):
                del self.ending[pid]
                self._tell(ended=pid, status=status)

    def _tell(self, **message) -> None:
        self.server.send(json.dumps(message).encode())


def _kill_group(pid: int) -> bool:
    """Whether anything of the run that began with this process was left."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _preload(names: list[str]) -> str:
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library may look for a folder that it can write to
            return f"the module {name!r} cannot be preloaded ({error})"
    sys.path[:] = [path for path in sys.path if os.path.exists(path)]
    return ""
