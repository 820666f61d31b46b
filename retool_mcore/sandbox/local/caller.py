"""The server's end of one connection: a request comes in, a reply goes out, a hang-up cancels."""

import select
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retool_mcore.sandbox.local.loop import Loop
from retool_mcore.sandbox.local.wire import Frames

if TYPE_CHECKING:
    from retool_mcore.sandbox.local.run import Run

MAX_REQUEST_BYTES = 256 * 2**20
READ_BYTES = 1 << 18


@dataclass(eq=False)
class Caller:
    """Calls `on_request(caller, header, raw frame)` once and `on_hang_up(caller)` if the other side goes first."""

    loop: Loop
    connection: socket.socket
    on_request: Callable[["Caller", dict, bytes], None]
    on_hang_up: Callable[["Caller"], None]

    def __post_init__(self):
        self.run: Run | None = None
        self.closed = False
        self._frames = Frames(MAX_REQUEST_BYTES)
        self._asked = False
        self._unsent = memoryview(b"")
        self.connection.setblocking(False)
        self.loop.watch(self.connection.fileno(), self._on_event)

    def reply(self, data: bytes) -> None:
        """Send and close; a caller that reads slowly is not waited for."""
        if self.closed:
            return
        self._unsent = memoryview(data)
        self.loop.change(self.connection.fileno(), select.EPOLLOUT)
        self._send()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.loop.forget(self.connection.fileno())
            self.connection.close()

    def _on_event(self, _: int) -> None:
        if self._unsent:
            self._send()
            return
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            self.on_hang_up(self)
            return
        try:
            self._frames.feed(data)
            frame = self._frames.next()
            if frame is not None and not self._asked:
                self._asked = True
                self.on_request(self, frame[0], frame[2])
        except (ValueError, KeyError, TypeError):
            self.close()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self.connection.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            pass
        self.close()
