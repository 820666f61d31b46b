"""The namespaces that stand ready at level "namespaces", each held by its init, and which of them serve again."""

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from retool_mcore.sandbox.isolation.confine import TMP_OPTIONS
from retool_mcore.sandbox.isolation.init import start_init
from retool_mcore.sandbox.local.loop import Loop, Timer

# After that many runs one goes, so that nothing that grows in a namespace (process ids) does so for ever.
MAX_RUNS = 32
CLEAR_S = 5.0


class Init:
    """`on_ready()`: a program may begin. `on_gone()`: nothing of a program lives. `on_end(reason)`: it is dead."""

    def __init__(self, loop: Loop, folders: list[str]):
        self.loop = loop
        self.pid, self.channel = start_init(TMP_OPTIONS, folders)
        self.fd = os.pidfd_open(self.pid)
        self.folder, self.runs = -1, 0
        self.ended, self.failure = False, ""
        self.timer: Timer | None = None
        self.on_ready = self.on_gone = self.on_end = _nothing
        loop.watch(self.fd, lambda _: self._end())
        loop.watch(self.channel.fileno(), lambda _: self._hear())

    def kill(self) -> None:
        """Kill it and every process in its namespace; `on_end` follows."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signal.SIGKILL)

    def clear(self) -> None:
        """Kill the program and make everything as new: `on_gone`, then `on_ready` follow; `on_end` if that fails."""
        self.timer = self.loop.after(CLEAR_S, self.kill)
        try:
            self.channel.send(b"clear")
        except OSError:
            self.kill()

    def take_folder(self) -> int:
        """The descriptor of the working folder, which the caller closes."""
        folder, self.folder = self.folder, -1
        return folder

    def _hear(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self.channel, 4096, 1)
        except OSError:
            message, fds = b"", []
        if message == b"ok" and fds:
            self.folder = fds[0]
            if self.timer is not None:
                self.timer.cancel()
            self.on_ready()
        elif message == b"gone":
            self.runs += 1
            self.on_gone()
        else:
            self.failure = message.decode("utf-8", "replace") or "the first process of a run ended"
            self.loop.forget(self.channel.fileno())
            self.kill()

    def _end(self) -> None:
        self.ended = True
        if self.timer is not None:
            self.timer.cancel()
        for fd in (self.fd, self.channel.fileno()):
            self.loop.forget(fd)
        os.waitpid(self.pid, 0)
        os.close(self.fd)
        self.channel.close()
        if self.folder >= 0:
            os.close(self.take_folder())
        self.on_end()


@dataclass(eq=False)
class NamespacePool:
    """Namespaces that no program is in: `returning` become ready soon; `on_ready()` says when one is, or is lost."""

    loop: Loop
    folders: list[str]
    on_ready: Callable[[], None]
    ready: deque[Init] = field(default_factory=deque)
    returning: set[Init] = field(default_factory=set)

    def take(self) -> Init:
        """Take a namespace that is ready, or a new one that will be. Raises OSError."""
        return self.ready.pop() if self.ready else Init(self.loop, self.folders)

    def give_back(self, init: Init) -> None:
        """Its program is gone and it is becoming as new."""
        if init.runs >= MAX_RUNS:
            init.on_ready = init.on_gone = init.on_end = _nothing
            init.kill()
            return
        self.returning.add(init)
        init.on_ready = lambda: self._returned(init)
        init.on_end = lambda: self._lost(init)
        init.on_gone = _nothing

    def trim(self) -> None:
        """End those that are ready and that nobody took."""
        while self.ready:
            self.ready.popleft().kill()

    def close(self) -> None:
        for init in (*self.ready, *self.returning):
            init.kill()

    def _returned(self, init: Init) -> None:
        self.returning.discard(init)
        self.ready.append(init)
        self.on_ready()

    def _lost(self, init: Init) -> None:
        self.returning.discard(init)
        if init in self.ready:
            self.ready.remove(init)
        self.on_ready()


def _nothing() -> None:
    return
