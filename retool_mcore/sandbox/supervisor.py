"""One run: a process, forked from the warm server, that starts the program, watches its limits and answers.

    server ── supervisor ── [process 1 of the pid namespace] ── program

The supervisor stays outside of the pid namespace, so whatever the program does to its own processes, the supervisor
can end them: by killing process 1, or, without namespaces, by adopting every orphan and killing until no descendant
is left.
"""

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time

from retool_mcore.sandbox import isolation
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.child import MAX_PROCESSES, Settings, be_program
from retool_mcore.sandbox.clip import Clip
from retool_mcore.sandbox.wire import encode_reply, read_request

WATCH_S = 0.05
# A program that writes this many times its output limit is stopped instead of read to its end.
FLOOD_FACTOR = 100


def supervise(handover: socket.socket, settings: Settings) -> None:
    """Make everything ready, wait for a connection on `handover`, read one request from it, run it, reply.

    Returns early, everything killed, when either side hangs up.
    """
    work_dir = tempfile.mkdtemp(dir=settings.base_dir)
    try:
        run = _Run(settings)
        try:
            run.prepare(work_dir)
            failure = ""
        except OSError as error:
            failure = f"the sandbox failed: {error}\n"
        connection = _receive(handover)
        request = connection and read_request(connection)
        if request is None:
            run.kill()
            return
        if failure:
            result = Result(Status.SANDBOX, "", failure, None, 0.0)
        else:
            run.watch(connection, request)
            run.kill()
            run.drain()
            result = run.result()
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(encode_reply(result))


def _receive(handover: socket.socket) -> socket.socket | None:
    message, fds, _, _ = socket.recv_fds(handover, 1, 1)
    return socket.socket(fileno=fds[0]) if message else None


class _Run:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.stdout = Clip(settings.max_output_bytes)
        self.stderr = Clip(settings.max_output_bytes)
        # JSON of a value and a traceback, each at most max_output_bytes, whose every byte may need an escape.
        self.report = Clip(16 * settings.max_output_bytes + 4096)
        self.pipes: dict[int, Clip] = {}
        self.child = 0
        self.exit_code: int | None = None
        self.stopped: tuple[Status, str] | None = None

    def prepare(self, work_dir: str) -> None:
        """Start the confined child, which then waits for its program."""
        if self.settings.level == "namespaces":
            isolation.enter_namespaces()
        else:
            isolation.adopt_orphans()
        isolation.die_with_parent()
        # The end of the child must wake the selector of `watch`.
        self.wake, self.wake_writer = socket.socketpair()
        self.wake_writer.setblocking(False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.wake_writer.fileno(), warn_on_full_buffer=False)
        request_reader, self.request_writer = os.pipe()
        pairs = [os.pipe() for _ in range(3)]
        self.child = os.fork()
        if self.child == 0:
            be_program(self.settings, work_dir, request_reader, [writer for _, writer in pairs])
        os.close(request_reader)
        for (reader, writer), clip in zip(pairs, (self.stdout, self.stderr, self.report), strict=True):
            os.close(writer)
            os.set_blocking(reader, False)
            self.pipes[reader] = clip

    def watch(self, connection: socket.socket, request: dict) -> None:
        """Hand the program over and collect its output until it ends or hits a limit."""
        self.started = time.monotonic()
        self.timeout_s = timeout_s = request["timeout_s"]
        deadline = self.started + timeout_s
        # A child that failed to confine itself is gone; its report says why.
        with contextlib.suppress(BrokenPipeError), open(self.request_writer, "wb") as pipe:
            pipe.write(json.dumps(request).encode())
        selector = selectors.DefaultSelector()
        for source in (*self.pipes, self.wake, connection):
            selector.register(source, selectors.EVENT_READ)
        while self.exit_code is None and self.stopped is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self.stopped = Status.TIMEOUT, f"the program ran longer than {timeout_s:g} s and was stopped"
                return
            for key, _ in selector.select(min(left_s, WATCH_S)):
                if key.fileobj is connection:
                    self.stopped = Status.KILLED, "the caller hung up"
                elif key.fileobj is self.wake:
                    if signal.SIGTERM in self.wake.recv(4096):
                        self.stopped = Status.KILLED, "the sandbox was closed"
                elif not self._read(key.fileobj):
                    selector.unregister(key.fileobj)
            self._reap()
            self._check_limits()

    def _check_limits(self) -> None:
        if self.exit_code is not None or self.stopped is not None:
            return
        flood_bytes = FLOOD_FACTOR * self.settings.max_output_bytes
        if self.stdout.total_bytes + self.stderr.total_bytes > flood_bytes:
            self.stopped = Status.OUTPUT, f"the program wrote more than {flood_bytes} bytes and was stopped"
        elif len(isolation.descendants(os.getpid())) > MAX_PROCESSES:
            self.stopped = Status.KILLED, f"the program started more than {MAX_PROCESSES} processes and was stopped"

    def _read(self, pipe: int) -> bool:
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            return True
        self.pipes[pipe].feed(chunk)
        return bool(chunk)

    def _reap(self) -> bool:
        """Collect ended children; whether any child is left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.child:
                    self.exit_code = os.waitstatus_to_exitcode(status)
        except ChildProcessError:
            return False

    def kill(self) -> None:
        """End whatever the run has left, however often it forked or changed its session."""
        while self._reap():
            # Killing process 1 of a pid namespace takes everything in it along.
            alone = self.settings.level == "namespaces"
            for pid in [self.child] if alone else isolation.descendants(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.001)

    def drain(self) -> None:
        """Read what was written before the end; no writer is left, so every pipe ends."""
        for pipe in self.pipes:
            os.set_blocking(pipe, True)
            while self._read(pipe):
                continue

    def result(self) -> Result:
        duration_s = time.monotonic() - self.started
        status, reason, value = self._ending()
        if reason:
            self.stderr.feed(reason.encode("utf-8", "replace"))
        if status is Status.SUCCESS and (self.stdout.was_cut or self.stderr.was_cut):
            status = Status.OUTPUT
        stdout = self.stdout.text()
        if self.stopped and self.stopped[0] is Status.OUTPUT:
            stdout += f"\n{self.stopped[1]}\n"
        return Result(status, stdout, self.stderr.text(), value, duration_s)

    def _ending(self) -> tuple[Status, str, str | None]:
        """(status, last lines of stderr, value)"""
        if self.stopped is not None:
            return self.stopped[0], f"\n{self.stopped[1]}\n", None
        # The program can write into this pipe as well: whatever does not parse came from it.
        try:
            report = json.loads(self.report.text())
            status, value, error = Status(report["status"]), report["value"], report["traceback"]
        except (ValueError, KeyError, TypeError):
            return *_unreported(self.exit_code, self.timeout_s), None
        if status is Status.MEMORY:
            error = f"\nMemoryError: the program needed more than {self.settings.memory_mb} MB\n"
        return status, error, value


def _unreported(exit_code: int, timeout_s: float) -> tuple[Status, str]:
    number = -exit_code if exit_code < 0 else exit_code - 128
    if number == signal.SIGXCPU:
        return Status.TIMEOUT, f"\nthe program used more processor time than {timeout_s:g} s allow and was stopped\n"
    if number in set(signal.Signals):
        return Status.KILLED, f"\nthe program was killed by {signal.Signals(number).name}\n"
    return Status.KILLED, f"\nthe program left through os._exit({exit_code}) or an exec\n"
