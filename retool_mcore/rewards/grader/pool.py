"""The parent's side of the workers: a few processes that compare, each of which can be killed at any moment."""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe, reduction
from multiprocessing.connection import Connection

# Importing math-verify takes one second, on a loaded machine twenty; beyond this something is broken.
START_TIMEOUT_S = 180.0
# A zygote only forks and kills; one that takes longer is stopped or gone.
REPLY_TIMEOUT_S = 20.0

# The parent's search path is handed over whole and in order: with a script's or the current folder in front, this
# package's own `math.py` could stand in for the standard library's.
_BOOT = (
    "import sys; descriptor, limit_s, memory_mb = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]); "
    "sys.path[:] = sys.argv[4:]; "
    "from retool_mcore.rewards.grader.zygote import main; main(descriptor, limit_s, memory_mb)"
)


class WorkerStopped(Exception):
    """The process at the other end ended by itself."""


class NotSent(WorkerStopped):
    """It had ended before the message went out."""


class Worker:
    """One forked process that compares. Not thread-safe; `Pool` hands it to one thread at a time."""

    def __init__(self, pid: int, connection: Connection):
        self.pid, self.connection = pid, connection

    def compare(self, answer: str, truth: str, timeout_s: float, **options: bool) -> bool | None:
        """The worker's verdict; None when it was not there after `timeout_s`. Raises WorkerStopped, NotSent."""
        try:
            # Text and no pickle: what reads a policy's answers must not make objects here.
            self.connection.send_bytes(json.dumps({"answer": answer, "truth": truth, **options}).encode())
        except OSError as error:
            raise NotSent from error
        reply = _received(self.connection, timeout_s)
        return None if reply is None else json.loads(reply)


def _received(connection: Connection, timeout_s: float) -> bytes | None:
    """The next message, None after `timeout_s`. Raises WorkerStopped."""
    try:
        return connection.recv_bytes() if connection.poll(timeout_s) else None
    except (OSError, EOFError) as error:
        raise WorkerStopped from error


class Zygote:
    """The process that forks workers; started by the first `fork`."""

    def __init__(self, limit_s: float, memory_mb: int):
        self.connection, theirs = Pipe()
        with theirs:
            command = [sys.executable, "-P", "-c", _BOOT, str(theirs.fileno()), str(limit_s), str(memory_mb)]
            # A session of its own: Ctrl-C in the terminal is for the trainer.
            self.process = subprocess.Popen(
                [*command, *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # One thread a worker: the pool is what runs in parallel.
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        ready = None
        with suppress(WorkerStopped):
            ready = _received(self.connection, START_TIMEOUT_S)
        if ready is None:
            self.close()
            raise RuntimeError(
                f"the grader's process did not start (exit code {self.process.returncode}); "
                "its own message is on standard error"
            )

    def ask(self, message: bytes, end: Connection | None = None) -> bytes:
        """Its reply to a message that `end` goes with. One thread at a time. Raises WorkerStopped when it is gone."""
        try:
            self.connection.send_bytes(message)
            if end is not None:
                reduction.send_handle(self.connection, end.fileno(), None)
        except OSError as error:
            raise WorkerStopped from error
        reply = _received(self.connection, REPLY_TIMEOUT_S)
        if reply is None:
            raise WorkerStopped
        return reply

    def close(self) -> None:
        self.connection.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Pool:
    """At most `size` workers, forked as they are needed; one comparison a worker at a time, from any thread.

    timeout_s: seconds a comparison may take before its worker is killed; neither waiting for a free worker nor the
    start counts. memory_mb: address space of a worker in MiB.
    """

    def __init__(self, size: int, timeout_s: float, memory_mb: int):
        self.timeout_s, self.memory_mb = timeout_s, memory_mb
        self.killed = 0
        self._free: list[Worker] = []
        self._slots = threading.BoundedSemaphore(size)
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None

    def compare(self, answer: str, truth: str, **options: bool) -> bool | None:
        """`engine.compare` with its options; None when the worker had to be killed, or died over it."""
        with self._slots:
            for _ in range(3):
                worker, verdict = self._take(), None
                try:
                    verdict = worker.compare(answer, truth, self.timeout_s, **options)
                except NotSent:  # it died while idle, which says nothing about this pair
                    continue
                except WorkerStopped:
                    pass
                finally:
                    # Also after a KeyboardInterrupt: a reply left unread would answer the next pair.
                    self._give_back(worker, usable=verdict is not None)
                with self._lock:
                    self.killed += verdict is None
                return verdict
        raise RuntimeError("the grader's workers end whenever they are asked")

    def _take(self) -> Worker:
        with self._lock:
            if self._free:
                return self._free.pop()
            for _ in range(2):
                if self._zygote is None:
                    self._zygote = Zygote(2 * self.timeout_s + 1, self.memory_mb)
                ours, theirs = Pipe()
                try:
                    with theirs:
                        return Worker(int(self._zygote.ask(b"fork", theirs)), ours)
                except WorkerStopped:  # the zygote was killed while idle
                    self._end_zygote()
        raise RuntimeError("the grader's process ends whenever it is asked for a worker")

    def _give_back(self, worker: Worker, usable: bool) -> None:
        with self._lock:
            if usable:
                self._free.append(worker)
                return
            worker.connection.close()
            try:
                if self._zygote is not None:
                    self._zygote.ask(b"%d" % worker.pid)
            except WorkerStopped:  # what it forked ends by its own limit
                self._end_zygote()

    def _end_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def close(self) -> None:
        """End all processes. A later comparison starts new ones."""
        with self._lock:
            for worker in self._free:
                worker.connection.close()
            self._free.clear()
            self._end_zygote()
