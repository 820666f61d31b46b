"""A place where a program can run: its processes, pipes and folder, made ready before a program is there.

The server makes it, hands it one run (or, in a session, one run after another) and ends it.
"""

import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from retool_mcore.sandbox.isolation import limits, namespaces
from retool_mcore.sandbox.isolation.syscalls import open_beneath
from retool_mcore.sandbox.local.inits import Init, NamespacePool
from retool_mcore.sandbox.local.loop import Loop
from retool_mcore.sandbox.local.remove import remove_tree

READ_BYTES = 65536


@dataclass(eq=False)
class Slot:
    """`on_end(place)` is called once, when every process of the place is gone and its pipes can be read to their end.

    `program`: process id, 0 until the zygote has forked it. `exit_status`: as of waitpid, None until it has ended or
    when nothing reported it.
    """

    loop: Loop
    inits: NamespacePool | None
    base_dir: str
    zygote: socket.socket
    on_end: Callable[["Slot"], None]

    def __post_init__(self):
        self.program = 0
        self.exit_status: int | None = None
        self.work_dir, self.folder = namespaces.WORK_DIR, -1
        self.init: Init | None = None
        self.starting = True
        self.failure = ""
        self.killed = self.clearing = self.ended = False
        self.outputs: list[int] = []  # stdout, stderr, and where a final expression is shown
        self.control: socket.socket | None = None

    def prepare(self, on_ready: Callable[["Slot"], None]) -> None:
        """Make the namespaces, or the folder; `on_ready` is then called, or `on_end` if it failed. Raises OSError."""
        if self.inits is None:
            self.work_dir = tempfile.mkdtemp(dir=self.base_dir)
            self.folder = os.open(self.work_dir, os.O_RDONLY | os.O_DIRECTORY)
            on_ready(self)
            return
        self.init = self.inits.take()
        self.init.on_end = self._init_ended
        self.init.on_gone = self._program_gone
        self.init.on_ready = lambda: self._init_ready(on_ready)
        if self.init.folder >= 0:
            self._init_ready(on_ready)

    def _init_ready(self, on_ready: Callable[["Slot"], None]) -> None:
        self.folder = self.init.take_folder()
        on_ready(self)

    def fork(self) -> None:
        """Ask the zygote for the program's process. Raises OSError."""
        pipes = [os.pipe() for _ in range(3)]
        self.outputs = [reader for reader, _ in pipes]
        stdout, stderr, value = (writer for _, writer in pipes)
        self.control, control = socket.socketpair()
        for fd in self.outputs:
            os.set_blocking(fd, False)
        self.control.setblocking(False)
        fds = [stdout, stderr, control.fileno(), value]
        if self.init is not None:
            fds.insert(0, self.init.fd)
        try:
            socket.send_fds(self.zygote, [b"fork" + json.dumps({"work_dir": self.work_dir}).encode()], fds)
        finally:
            for _, writer in pipes:
                os.close(writer)
            control.close()

    def hand_over(self, request: bytes, stdin: bytes) -> None:
        """Give the waiting program its request, a frame. Raises OSError when it is gone."""
        fds = [_in_memory(data) for data in (request, stdin) if data]
        try:
            socket.send_fds(self.control, [b"r"], fds)
        finally:
            for fd in fds:
                os.close(fd)

    def fail(self, reason: str) -> None:
        """The place could not be made; `on_end` follows."""
        self.failure = reason
        if self.init is not None:
            self.kill()
        else:
            self._end()

    def kill(self) -> None:
        """Kill every process; `on_end` follows."""
        self.killed = True
        if self.init is not None:
            self.init.kill()
        elif self.program > 0 and self.exit_status is None:
            self.zygote.send(b"kill" + json.dumps({"pid": self.program}).encode())

    def clear(self) -> None:
        """Kill what is left of a run that ended as it should; its namespaces serve again. `on_end` follows."""
        if self.init is None:
            self.kill()
        elif not self.clearing and not self.killed:
            self.clearing = True
            self.init.clear()

    def program_ended(self, status: int) -> None:
        """The zygote says so; without a pid namespace it says so when all other processes of the run have ended too."""
        if self.ended:
            return
        self.exit_status = status
        if self.init is None:
            self._end()
        elif os.WIFEXITED(status):
            self.clear()
        elif not self.clearing:
            self.kill()

    def _program_gone(self) -> None:
        init, self.init = self.init, None
        self.inits.give_back(init)
        self._end()

    def _init_ended(self) -> None:
        self.failure = self.failure or self.init.failure
        self.init = None
        self._end()

    def _end(self) -> None:
        if not self.ended:
            self.ended = True
            self.on_end(self)

    def processes(self, of_zygote: list[int]) -> list[int]:
        """Ids of the place's processes but for its init. `of_zygote`: all descendants of the zygote."""
        if self.init is not None:
            return [self.program, *limits.descendants(self.program), *limits.descendants(self.init.pid)]
        return [pid for pid in of_zygote if _group(pid) == self.program]

    def read_file(self, path: str, limit_bytes: int) -> bytes | None:
        """A regular file of at most `limit_bytes` below the folder, reached without any link; otherwise None."""
        try:
            fd = open_beneath(self.folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except (OSError, ValueError):
            return None
        try:
            info = os.fstat(fd)
            # A file with several names may be the host's own where the folder is in the host's file system.
            if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1 or info.st_size > limit_bytes:
                return None
            with open(fd, "rb", closefd=False) as file:
                data = file.read(limit_bytes + 1)
        except OSError:
            return None
        finally:
            os.close(fd)
        return data if len(data) <= limit_bytes else None

    def close(self) -> None:
        """Release everything; the processes must have ended."""
        for fd in (*self.outputs, self.folder):
            if fd >= 0:
                self.loop.forget(fd)
                os.close(fd)
        self.outputs, self.folder = [], -1
        if self.control is not None:
            self.loop.forget(self.control.fileno())
            self.control.close()
        if self.work_dir != namespaces.WORK_DIR:
            remove_tree(self.work_dir)


def _in_memory(data: bytes) -> int:
    # A file in memory: nobody has to feed it, and a program that does not read it blocks nobody.
    fd = os.memfd_create("input")
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
        file.seek(0)
    return fd


def _group(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[2])
    except (FileNotFoundError, ProcessLookupError):
        return 0
