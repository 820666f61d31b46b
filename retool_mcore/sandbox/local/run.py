"""One run in the server: a request, the place it runs in, what it has written and why it was stopped."""

import os
import signal
import time

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.clip import Clip, clip
from retool_mcore.sandbox.local.loop import Timer
from retool_mcore.sandbox.local.place import READ_BYTES, Slot
from retool_mcore.sandbox.local.wire import Frames

# A program that writes this many times its output limit is stopped instead of read to its end.
FLOOD_FACTOR = 100
MAX_FETCHED_BYTES = 64 * 2**20
MAX_CHUNKS = 64
# More than what `clip` adds to a text that it cuts.
CUT_NOTE_BYTES = 100


class Run:
    """`stopped`: (status, reason) as soon as something other than the program itself ended it."""

    def __init__(self, header: dict, raw: bytes, max_output_bytes: int):
        self.raw = raw
        self.stdin: str = header["stdin"]
        self.timeout_s: float = header["timeout_s"]
        self.memory_mb: int = header["memory_mb"]
        self.session: str | None = header["session"]
        self.fetch_files: list[str] = header["fetch_files"]
        self.flood_bytes = FLOOD_FACTOR * max_output_bytes
        self.max_output_bytes = max_output_bytes
        self.stdout = Clip(max_output_bytes)
        self.stderr = Clip(max_output_bytes)
        # Value and traceback, each of at most max_output_bytes and a note, every byte of which may need an escape.
        self.reports = Frames(16 * max_output_bytes + 8192)
        self.begun = False
        self.report: dict | None = None
        self.stopped: tuple[Status, str] | None = None
        self.place: Slot | None = None
        self.new_session = False
        self.timer: Timer | None = None
        self.started = time.monotonic()

    def stop(self, status: Status, reason: str) -> None:
        if self.stopped is None and self.report is None:
            self.stopped = status, reason

    def begin(self, place: Slot) -> None:
        self.place = place
        self.started = time.monotonic()

    def read_from(self, fd: int) -> bool:
        """Take one chunk of the place's stdout or stderr; whether its end has not come yet."""
        try:
            chunk = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        (self.stdout if fd == self.place.stdout else self.stderr).feed(chunk)
        if self.stdout.total_bytes + self.stderr.total_bytes > self.flood_bytes:
            self.stop(Status.OUTPUT, f"the program wrote more than {self.flood_bytes} bytes and was stopped")
        return bool(chunk)

    def read_report(self) -> tuple[bool, bool]:
        """Take what the program says over the control socket: (is its report complete, may more come).

        The program can write there as well: what does not parse is dropped, and what does can only be its own report.
        """
        try:
            chunk = self.place.control.recv(READ_BYTES)
        except BlockingIOError:
            return False, True
        except OSError:
            return False, False
        if not chunk:
            return False, False
        if self.report is not None or self.stopped is not None:
            return False, True
        try:
            self.reports.feed(chunk)
            found = self.reports.next()
            if found is not None and not self.begun and found[0].get("begun") is True:
                self.begun, found = True, self.reports.next()
            if found is not None:
                self.report = _checked(found[0], self.max_output_bytes, self.begun)
        except (ValueError, KeyError, TypeError, RecursionError):
            return False, False
        return self.report is not None, True

    def _drain(self) -> None:
        # Enough to empty what a pipe can hold; in a session, a process left in the background could write for ever.
        for fd, clip_ in ((self.place.stdout, self.stdout), (self.place.stderr, self.stderr)):
            for _ in range(MAX_CHUNKS):
                try:
                    chunk = os.read(fd, READ_BYTES)
                except BlockingIOError:
                    break
                clip_.feed(chunk)
                if not chunk:
                    break

    def finish(self) -> Result:
        """The result, once the program has reported or its place has ended."""
        duration_s = time.monotonic() - self.started
        for _ in range(MAX_CHUNKS):
            if self.report is not None or self.read_report() != (False, True):
                break
        self._drain()
        status, reason, value, exit_code = self._ending()
        if reason:
            self.stderr.feed(reason.encode("utf-8", "replace"))
        value_was_cut = self.report is not None and self.report["was_cut"]
        if status is Status.SUCCESS and (self.stdout.was_cut or self.stderr.was_cut or value_was_cut):
            status = Status.OUTPUT
        stdout = self.stdout.text()
        if status is Status.OUTPUT and self.stopped:
            stdout += f"\n{self.stopped[1]}\n"
        return Result(status, stdout, self.stderr.text(), value, duration_s, exit_code, self._fetched())

    def _ending(self) -> tuple[Status, str, str | None, int | None]:
        """(status, last lines of stderr, value, exit code)"""
        if self.stopped is not None:
            return self.stopped[0], f"\n{self.stopped[1]}\n", None, None
        if self.report is not None:
            status, error = Status(self.report["status"]), self.report["traceback"]
            if status is Status.MEMORY:
                error = f"\nMemoryError: the program needed more than {self.memory_mb} MB\n"
            return status, error, self.report["value"], self.report["exit_code"]
        if self.place.exit_status is None:
            reason = self.place.failure or "the program's namespace ended before it"
            return Status.KILLED, f"\nthe program was killed: {reason}\n", None, None
        return _unreported(os.waitstatus_to_exitcode(self.place.exit_status), self.timeout_s)

    def _fetched(self) -> dict[str, bytes]:
        files, left = {}, MAX_FETCHED_BYTES
        for path in self.fetch_files:
            data = self.place.read_file(path, left)
            if data is not None:
                files[path] = data
                left -= len(data)
        return files


def _checked(report: dict, max_output_bytes: int, begun: bool) -> dict:
    status, value, was_cut, error, exit_code = (
        report[key] for key in ("status", "value", "was_cut", "traceback", "exit_code")
    )
    right_types = isinstance(error, str) and isinstance(value, str | None) and isinstance(exit_code, int)
    # Trouble of the sandbox voids a group: only our own code, before the program began, may report it.
    if not right_types or status not in (Status.SUCCESS, Status.ERROR, Status.MEMORY, *[Status.SANDBOX][begun:]):
        raise ValueError("not a report")
    return {
        "status": status,
        "value": None if value is None else _bounded(value, max_output_bytes),
        "was_cut": bool(was_cut),
        "traceback": _bounded(error, max_output_bytes),
        "exit_code": exit_code & 0xFF,
    }


def _bounded(text: str, limit_bytes: int) -> str:
    # The program's side has clipped it; again only when that was not our code, or the note on the cut would be cut.
    return text if len(text.encode("utf-8", "replace")) <= limit_bytes + CUT_NOTE_BYTES else clip(text, limit_bytes)


def _unreported(exit_code: int, timeout_s: float) -> tuple[Status, str, None, int]:
    if exit_code >= 0:
        return Status.KILLED, f"\nthe program left through os._exit({exit_code}) or an exec\n", None, exit_code
    if -exit_code == signal.SIGXCPU:
        reason = f"the program used more processor time than {timeout_s:g} s allow and was stopped"
        return Status.TIMEOUT, f"\n{reason}\n", None, 128 - exit_code
    if -exit_code == signal.SIGSYS:
        reason = "the program was killed for a system call that is not allowed"
    else:
        name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"
        reason = f"the program was killed by {name}"
    return Status.KILLED, f"\n{reason}\n", None, 128 - exit_code
