"""One run: a process, forked from the warm server, that starts the program, watches its limits and answers.

    server ── supervisor ── [process 1 of the pid namespace] ── program

The supervisor stays outside of the pid namespace, so whatever the program does to its own processes, the supervisor
can end them: by killing process 1, or, without namespaces, by adopting every orphan and killing until no descendant
is left.
"""

import json
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from dataclasses import dataclass

from retool_mcore.sandbox import isolation
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.clip import Clip
from retool_mcore.sandbox.program import execute
from retool_mcore.sandbox.wire import encode_reply, read_request

MAX_PROCESSES = 64
MAX_FILES = 256
FILE_MB = 64
WATCH_S = 0.05
# A program that writes this many times its output limit is stopped instead of read to its end.
FLOOD_FACTOR = 100
REPORT_FD = 3


@dataclass(frozen=True)
class Settings:
    """What all runs of a server share; `level` is what isolation.detect found, `folders` what programs may read."""

    level: str
    folders: list[str]
    base_dir: str
    memory_mb: int
    max_output_bytes: int


def supervise(connection: socket.socket, settings: Settings) -> None:
    """Read one request, run it, reply. Returns early, everything killed, when the other side hangs up."""
    request = read_request(connection)
    if request is None:
        return
    started = time.monotonic()
    work_dir = tempfile.mkdtemp(dir=settings.base_dir)
    try:
        run = _Run(connection, settings, request, started)
        if settings.level == "namespaces":
            isolation.enter_namespaces()
        else:
            isolation.adopt_orphans()
        isolation.die_with_parent()
        run.start(work_dir)
        run.watch()
        run.kill()
        run.drain()
    except OSError as error:
        result = Result(Status.SANDBOX, "", f"the sandbox failed: {error}\n", None, time.monotonic() - started)
    else:
        result = run.result()
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    connection.setblocking(True)
    try:
        connection.sendall(encode_reply(result))
    except (BrokenPipeError, ConnectionResetError):
        return


class _Run:
    def __init__(self, connection: socket.socket, settings: Settings, request: dict, started: float):
        self.connection = connection
        self.settings = settings
        self.request = request
        self.started = started
        self.stdout = Clip(settings.max_output_bytes)
        self.stderr = Clip(settings.max_output_bytes)
        # JSON of a value and a traceback, each at most max_output_bytes, whose every byte may need an escape.
        self.report = Clip(16 * settings.max_output_bytes + 4096)
        self.pipes: dict[int, Clip] = {}
        self.child = 0
        self.exit_code: int | None = None
        self.stopped: tuple[Status, str] | None = None

    def start(self, work_dir: str) -> None:
        pairs = [os.pipe() for _ in range(3)]
        stdin = os.memfd_create("stdin")
        with open(stdin, "wb", closefd=False) as file:
            file.write(self.request["stdin"].encode("utf-8", "replace"))
            file.seek(0)
        # The end of the child must wake the selector below.
        self.wake, writer = socket.socketpair()
        writer.setblocking(False)
        self.wake_writer = writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        self.child = os.fork()
        if self.child == 0:
            _child(self.settings, self.request, work_dir, stdin, [writer for _, writer in pairs])
        for (reader, pipe_writer), clip in zip(pairs, (self.stdout, self.stderr, self.report), strict=True):
            os.close(pipe_writer)
            os.set_blocking(reader, False)
            self.pipes[reader] = clip
        os.close(stdin)

    def watch(self) -> None:
        """Collect output until the program ends or hits a limit."""
        timeout_s = self.request["timeout_s"]
        deadline = self.started + timeout_s
        selector = selectors.DefaultSelector()
        for source in (*self.pipes, self.wake, self.connection):
            selector.register(source, selectors.EVENT_READ)
        while self.exit_code is None and self.stopped is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self.stopped = Status.TIMEOUT, f"the program ran longer than {timeout_s:g} s and was stopped"
                return
            for key, _ in selector.select(min(left_s, WATCH_S)):
                if key.fileobj is self.connection:
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
            return *_unreported(self.exit_code, self.request["timeout_s"]), None
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


def _child(settings: Settings, request: dict, work_dir: str, stdin: int, outputs: list[int]) -> None:
    """Never returns. The report pipe carries {status, value, traceback}, also when the sandbox itself fails here."""
    try:
        isolation.die_with_parent()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        # The pipes' own numbers may lie below 4, so they are first moved out of the way.
        moved = [os.dup2(fd, 10 + index) for index, fd in enumerate((stdin, *outputs), 16)]
        for target, fd in enumerate(moved):
            os.dup2(fd, target)
        os.closerange(REPORT_FD + 1, 1024)
        os.setsid()
        own_namespaces = settings.level == "namespaces"
        if own_namespaces:
            isolation.enter_root(settings.base_dir, settings.folders, FILE_MB)
            work_dir = isolation.WORK_DIR
            program = os.fork()
            if program:
                _be_process_one(program)
            os.setsid()
        else:
            os.chdir(work_dir)
        isolation.drop_privileges()
        isolation.set_limits(
            settings.memory_mb,
            cpu_s=2 * int(request["timeout_s"] + 1),
            file_mb=FILE_MB,
            max_files=MAX_FILES,
            max_processes=MAX_PROCESSES if own_namespaces else None,
        )
    except OSError as error:
        _report({"status": Status.SANDBOX, "value": None, "traceback": f"\nthe sandbox failed: {error}\n"})
        os._exit(1)
    _report(execute(request["code"], work_dir, settings.max_output_bytes))
    os._exit(0)


def _report(report: dict) -> None:
    data = memoryview(json.dumps(report).encode())
    while data:
        data = data[os.write(REPORT_FD, data) :]


def _be_process_one(program: int) -> None:
    """Reap orphans until the program ends, then end too, which makes the kernel kill the rest of the namespace."""
    os.closerange(0, REPORT_FD + 1)
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == program:
            exit_code = os.waitstatus_to_exitcode(status)
            os._exit(exit_code if exit_code >= 0 else 128 - exit_code)
