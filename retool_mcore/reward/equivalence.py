"""Whether two final answers mean the same, decided by math-verify without its hazards.

Plain numbers and equal texts are decided in this process (`exact.py`). Everything else goes to one worker process
(`equivalence_worker.py`) that is killed when a comparison takes too long. No signals, no fork: usable from any thread,
Ray actor or event loop, though a call blocks its caller for up to the time-out (in a coroutine: `asyncio.to_thread`).
"""

import json
import os
import select
import subprocess
import sys
import threading
import time

from retool_mcore.reward import exact

# Importing math-verify takes one second, on a loaded machine twenty; beyond this something is broken.
START_TIMEOUT_S = 180.0

# The parent's search path is handed over whole and in order: with a script's or the current folder in front, this
# package's own `math.py` could stand in for the standard library's.
_BOOT = (
    "import sys; limit_s, memory_mb = float(sys.argv[1]), int(sys.argv[2]); sys.path[:] = sys.argv[3:]; "
    "from retool_mcore.reward.equivalence_worker import main; main(limit_s, memory_mb)"
)


class WorkerStopped(Exception):
    """The worker process ended by itself."""


class Worker:
    """One worker process and its two pipes. Not thread-safe; `Grader` holds the lock."""

    def __init__(self, timeout_s: float, memory_mb: int):
        # The worker's own limit only matters when this process is gone, so it leaves room for the kill from here.
        command = [sys.executable, "-P", "-c", _BOOT, str(2 * timeout_s + 1), str(memory_mb), *sys.path]
        # A session of its own: Ctrl-C in the terminal is for the trainer.
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._unread = b""
        try:
            ready = self._read_line(START_TIMEOUT_S)
        except WorkerStopped:
            ready = None
        if ready is None:
            self.kill()
            raise RuntimeError(
                f"the grader's worker process did not start (exit code {self.process.returncode}); "
                "its own message is on standard error"
            )

    def compare(self, answer: str, truth: str, timeout_s: float) -> bool | None:
        """The worker's verdict; None when it was not there after `timeout_s`. Raises BrokenPipeError, WorkerStopped."""
        self.process.stdin.write(json.dumps({"answer": answer, "truth": truth}).encode() + b"\n")
        line = self._read_line(timeout_s)
        return None if line is None else json.loads(line)["equal"]

    def kill(self) -> None:
        """End the process, whatever it is doing, and collect it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def _read_line(self, timeout_s: float) -> bytes | None:
        deadline = time.monotonic() + timeout_s
        poll = select.poll()  # select() fails on descriptors above 1023, which a Ray worker reaches
        poll.register(self.process.stdout, select.POLLIN)
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if not poll.poll(max(left_s, 0) * 1000):
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                raise WorkerStopped
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line


class Grader:
    """Compares answers; owns at most one worker process, started at the first comparison that needs it.

    timeout_s: seconds one comparison may take before the worker is killed; starting the worker does not count.
    memory_mb: address space of the worker in MiB. memo_size: verdicts kept, the oldest leave first.
    killed: comparisons that ended in a kill or a crash so far. They count as not equivalent and are not remembered,
    since a machine under load may have caused them.
    """

    def __init__(self, timeout_s: float = 2.0, memory_mb: int = 4096, memo_size: int = 100_000):
        self.timeout_s = timeout_s
        self.memory_mb = memory_mb
        self.memo_size = memo_size
        self.killed = 0
        self._memo: dict[tuple[str, str], bool] = {}
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def equivalent(self, answer: str, truth: str) -> bool:
        """Whether `answer` means the same as `truth`; blocks for at most the time-out (and once for the start)."""
        verdict = exact.decide(answer, truth)
        if verdict is None:
            verdict = self._memo.get((answer, truth))
        if verdict is None:
            verdict = self.compare_in_worker(answer, truth)
            if verdict is not None:
                self._remember((answer, truth), verdict)
        return bool(verdict)

    def compare_in_worker(self, answer: str, truth: str) -> bool | None:
        """math-verify's verdict, neither decided nor remembered in this process; None when the worker had to be killed.

        Raises RuntimeError when the worker cannot be started, or in a forked child (which needs a Grader of its own).
        """
        if os.getpid() != self._pid:
            raise RuntimeError("a Grader does not survive a fork: make one in the child process, or use equivalent()")
        with self._lock:
            try:
                return self._compare(answer, truth)
            except BrokenPipeError:  # it died while idle, which says nothing about this pair
                return self._compare(answer, truth)

    def _compare(self, answer: str, truth: str) -> bool | None:
        if self._worker is None:
            self._worker = Worker(self.timeout_s, self.memory_mb)
        verdict = None
        try:
            verdict = self._worker.compare(answer, truth, self.timeout_s)
        except WorkerStopped:
            verdict = None
        finally:
            # Also after a KeyboardInterrupt: a reply left unread would answer the next pair.
            if verdict is None:
                self._stop()
        self.killed += verdict is None
        return verdict

    def _remember(self, pair: tuple[str, str], verdict: bool) -> None:
        with self._lock:
            self._memo[pair] = verdict
            while len(self._memo) > self.memo_size:
                del self._memo[next(iter(self._memo))]

    @property
    def worker_pid(self) -> int | None:
        """Process id of the running worker; None before the first and after a killed comparison."""
        return None if self._worker is None else self._worker.process.pid

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None

    def close(self) -> None:
        """End the worker. A later comparison starts a new one."""
        with self._lock:
            self._stop()

    def __enter__(self) -> "Grader":
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()


# By process id, so that a forked child does not share its parent's pipes. A worker ends by itself when they close.
_graders: dict[int, Grader] = {}


def equivalent(answer: str, truth: str) -> bool:
    """`Grader.equivalent` of this process's own grader, made at the first call; it lives as long as the process."""
    # setdefault is atomic; a Grader lost in a race between two threads has started nothing.
    return _graders.setdefault(os.getpid(), Grader()).equivalent(answer, truth)
