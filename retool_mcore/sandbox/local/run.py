"""One run in the server: a request, the place it runs in, what it has written and why it was stopped."""

import os
import signal
import time

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.clip import Clip
from retool_mcore.sandbox.local.child import OUT_OF_MEMORY
from retool_mcore.sandbox.local.loop import Timer
from retool_mcore.sandbox.local.place import READ_BYTES, Slot
from retool_mcore.sandbox.local.wire import Frames

# A program that writes this many times its output limit is stopped instead of read to its end.
FLOOD_FACTOR = 100
MAX_FETCHED_BYTES = 64 * 2**20
MAX_CHUNKS = 64
MAX_WORDS_BYTES = 8192
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
        self.stdout, self.stderr = Clip(max_output_bytes), Clip(max_output_bytes)
        self.value = Clip(max_output_bytes + CUT_NOTE_BYTES)
        self.words = Frames(MAX_WORDS_BYTES)
        self.begun, self.failure = False, ""
        self.exit_code: int | None = None
        self.stopped: tuple[Status, str] | None = None
        self.place: Slot | None = None
        self.new_session = False
        self.timer: Timer | None = None
        self.started = time.monotonic()
        # As of `watch.give_way`, and the processes that have it.
        self.nice, self.lowered = -20, set[int]()

    @property
    def is_over(self) -> bool:
        """Whether the program has ended, on its own or by a signal."""
        return self.exit_code is not None or (self.place is not None and self.place.exit_status is not None)

    def stop(self, status: Status, reason: str) -> None:
        if self.stopped is None and not self.is_over:
            self.stopped = status, reason

    def begin(self, place: Slot) -> None:
        self.place = place
        self.pipes = dict(zip(place.outputs, (self.stdout, self.stderr, self.value), strict=True))
        self.started = time.monotonic()

    def read_from(self, fd: int) -> bool:
        """Take one chunk of one of the place's outputs; whether its end has not come yet."""
        try:
            chunk = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return True
        self.pipes[fd].feed(chunk)
        if sum(clip.total_bytes for clip in self.pipes.values()) > self.flood_bytes:
            self.stop(Status.OUTPUT, f"the program wrote more than {self.flood_bytes} bytes and was stopped")
        return bool(chunk)

    def hear(self) -> bool | None:
        """Take what the program's process says over the control socket: None: nothing now, False: nothing more.

        A session's program can write there as well: what does not parse is dropped, and what does can only be its own
        exit code. That the sandbox failed, which voids a group, is heard only before the process ran a program.
        """
        try:
            chunk = self.place.control.recv(READ_BYTES)
            self.words.feed(chunk)
            while chunk and (frame := self.words.next()) is not None:
                word = frame[0]
                if "failed" in word and not self.begun and (self.session is None or self.new_session):
                    self.failure = str(word["failed"])
                elif "exit_code" in word and self.session is not None and not self.is_over and self.stopped is None:
                    self.exit_code = int(word["exit_code"]) & 0xFF
                self.begun = True
        except BlockingIOError:
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            return False
        return bool(chunk)

    def _drain(self) -> None:
        # Enough to empty what a pipe can hold; in a session, a process left in the background could write for ever.
        for fd, clip in self.pipes.items():
            for _ in range(MAX_CHUNKS):
                try:
                    chunk = os.read(fd, READ_BYTES)
                except BlockingIOError:
                    break
                clip.feed(chunk)
                if not chunk:
                    break

    def finish(self) -> Result:
        """The result, once the program has ended."""
        duration_s = time.monotonic() - self.started
        for _ in range(MAX_CHUNKS):
            if self.exit_code is not None or not self.hear():
                break
        self._drain()
        status, reason, exit_code = self._ending()
        if reason:
            self.stderr.feed(reason.encode("utf-8", "replace"))
        value = self.value.text() if status is Status.SUCCESS and self.value.total_bytes else None
        value_was_cut = self.value.total_bytes > self.max_output_bytes
        if status is Status.SUCCESS and (self.stdout.was_cut or self.stderr.was_cut or value_was_cut):
            status = Status.OUTPUT
        stdout = self.stdout.text()
        if status is Status.OUTPUT and self.stopped:
            stdout += f"\n{self.stopped[1]}\n"
        return Result(status, stdout, self.stderr.text(), value, duration_s, exit_code, self._fetched())

    def _ending(self) -> tuple[Status, str, int | None]:
        """(status, last lines of stderr, exit code)"""
        if self.stopped is not None:
            return self.stopped[0], f"\n{self.stopped[1]}\n", None
        if self.failure:
            return Status.SANDBOX, f"\nthe sandbox failed: {self.failure}\n", 1
        exit_code = self.exit_code
        if exit_code is None:
            if self.place.exit_status is None:
                reason = self.place.failure or "the program's namespace ended before it"
                return Status.KILLED, f"\nthe program was killed: {reason}\n", None
            exit_code = os.waitstatus_to_exitcode(self.place.exit_status)
        if exit_code >= 0:
            silent = exit_code and not self.stderr.total_bytes
            reason = f"the program ended with exit code {exit_code}\n" if silent else ""
            return Status.ERROR if exit_code else Status.SUCCESS, reason, exit_code
        if -exit_code == OUT_OF_MEMORY:
            return Status.MEMORY, f"\nMemoryError: the program needed more than {self.memory_mb} MB\n", 1
        return *_killed(-exit_code, self.timeout_s), 128 - exit_code

    def _fetched(self) -> dict[str, bytes]:
        files, left = {}, MAX_FETCHED_BYTES
        for path in self.fetch_files:
            data = self.place.read_file(path, left)
            if data is not None:
                files[path] = data
                left -= len(data)
        return files


def _killed(number: int, timeout_s: float) -> tuple[Status, str]:
    if number == signal.SIGXCPU:
        reason = f"the program used more processor time than {timeout_s:g} s allow and was stopped"
        return Status.TIMEOUT, f"\n{reason}\n"
    if number == signal.SIGSYS:
        reason = "the program was killed for a system call that is not allowed"
    else:
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        reason = f"the program was killed by {name}"
    return Status.KILLED, f"\n{reason}\n"
