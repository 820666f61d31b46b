"""The parent's side of the workers: a few processes that compare, each of which can be killed at any moment."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

# Importing math-verify takes one second, on a loaded machine twenty; beyond this something is broken.
START_TIMEOUT_S = 180.0

# The parent's search path is handed over whole and in order: with a script's or the current folder in front, this
# package's own `math.py` could stand in for the standard library's.
_BOOT = (
    "import sys; descriptor, limit_s, memory_mb = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]); "
    "sys.path[:] = sys.argv[4:]; "
    "from retool_mcore.rewards.grader.zygote import main; main(descriptor, limit_s, memory_mb)"
)


# A zygote only forks and kills; one that takes longer is stopped or gone.
REPLY_TIMEOUT_S = 20.0


class WorkerStopped(Exception):
    """The process at the other end ended by itself."""


class NotSent(WorkerStopped):
    """It had ended before the message went out."""


class _Channel:
    """Lines over a Unix socket, with a deadline."""

    def __init__(self, end: socket.socket):
        self.socket = end
        self._unread = b""

    def send(self, line: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if descriptors:
                socket.send_fds(self.socket, [line], list(descriptors))
            else:
                self.socket.sendall(line)
        except OSError as error:
            raise NotSent from error

    def read_line(self, timeout_s: float) -> bytes | None:
        """The next line, None after `timeout_s`. Raises WorkerStopped."""
        deadline = time.monotonic() + timeout_s
        poll = select.poll()  # select() fails on descriptors above 1023, which a Ray worker reaches
        poll.register(self.socket, select.POLLIN)
        while b"\n" not in self._unread:
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                return None
            try:
                chunk = self.socket.recv(65536)
            except OSError as error:
                raise WorkerStopped from error
            if not chunk:
                raise WorkerStopped
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line


class Worker:
    """One forked process that compares. Not thread-safe; `Pool` hands it to one thread at a time."""

    def __init__(self, pid: int, end: socket.socket):
        self.pid = pid
        self.channel = _Channel(end)
        try:
            self._handle = os.pidfd_open(pid)
        except OSError:  # a kernel or sandbox without it
            self._handle = None

    def compare(self, answer: str, truth: str, timeout_s: float, **options: bool) -> bool | None:
        """The worker's verdict; None when it was not there after `timeout_s`. Raises WorkerStopped, NotSent."""
        self.channel.send(json.dumps({"answer": answer, "truth": truth, **options}).encode() + b"\n")
        line = self.channel.read_line(timeout_s)
        return None if line is None else json.loads(line)["equal"]

    def kill(self) -> bool:
        """End the process at once, whatever it is doing; False when only its parent can."""
        self.channel.socket.close()
        if self._handle is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        self.close()
        return True

    def close(self) -> None:
        """Close this side; an idle worker then ends by itself."""
        self.channel.socket.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Zygote:
    """The process that forks workers; started by the first `fork`."""

    def __init__(self, limit_s: float, memory_mb: int):
        ours, theirs = socket.socketpair()
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
        self.channel = _Channel(ours)
        self._lock = threading.Lock()
        try:
            ready = self.channel.read_line(START_TIMEOUT_S)
        except WorkerStopped:
            ready = None
        if ready is None:
            self.close()
            raise RuntimeError(
                f"the grader's process did not start (exit code {self.process.returncode}); "
                "its own message is on standard error"
            )

    def _ask(self, message: bytes, *descriptors: int) -> bytes:
        with self._lock:
            self.channel.send(message, descriptors)
            reply = self.channel.read_line(REPLY_TIMEOUT_S)
        if reply is None:
            raise WorkerStopped
        return reply

    def fork(self) -> Worker:
        """A new worker, warm from the start. Raises WorkerStopped when this process is gone."""
        ours, theirs = socket.socketpair()
        with theirs:
            return Worker(int(self._ask(b"s\n", theirs.fileno())), ours)

    def kill(self, worker: Worker) -> None:
        """End a worker, whatever it is doing."""
        if worker.kill():
            return
        try:
            self._ask(b"k%d\n" % worker.pid)
        except WorkerStopped:
            self.close()

    def close(self) -> None:
        self.channel.socket.close()
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
                try:
                    verdict = self._compare_with(self._take(), answer, truth, options)
                    break
                except NotSent:  # it died while idle, which says nothing about this pair
                    continue
            else:
                raise RuntimeError("the grader's workers end whenever they are asked")
        if verdict is None:
            with self._lock:
                self.killed += 1
        return verdict

    def _compare_with(self, worker: Worker, answer: str, truth: str, options: dict) -> bool | None:
        verdict = None
        try:
            verdict = worker.compare(answer, truth, self.timeout_s, **options)
        except NotSent:
            raise
        except WorkerStopped:
            pass
        finally:
            # Also after a KeyboardInterrupt: a reply left unread would answer the next pair.
            if verdict is None:
                self._discard(worker)
            else:
                with self._lock:
                    self._free.append(worker)
        return verdict

    def _take(self) -> Worker:
        with self._lock:
            if self._free:
                return self._free.pop()
            for _ in range(2):
                if self._zygote is None:
                    self._zygote = Zygote(2 * self.timeout_s + 1, self.memory_mb)
                try:
                    return self._zygote.fork()
                except WorkerStopped:  # the zygote was killed while idle
                    self._zygote.close()
                    self._zygote = None
        raise RuntimeError("the grader's process ends whenever it is asked for a worker")

    def _discard(self, worker: Worker) -> None:
        zygote = self._zygote
        if zygote is not None:
            zygote.kill(worker)

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that wait for a comparison."""
        return [worker.pid for worker in self._free]

    def close(self) -> None:
        """End all processes. A later comparison starts new ones."""
        with self._lock:
            for worker in self._free:
                worker.close()
            self._free.clear()
            if self._zygote is not None:
                self._zygote.close()
                self._zygote = None
