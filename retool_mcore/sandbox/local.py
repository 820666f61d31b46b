"""The local back-end: every program is a fork of a warm server on this machine, alone in its own namespaces where
possible.

What is covered (see isolation.py for the levels): wall time, memory, processor time, number of processes and of open
files, size of files and of output; everything a program starts ends with it; at level "namespaces" also no network,
no view of other processes, a read-only file system without home folders and other data, and an empty private /tmp.

What is NOT covered:
- the kernel itself: there is no seccomp filter, so a program can try the whole system call table, nested user
  namespaces included;
- memory of all of a run's processes together (the limit holds for each; there is no cgroup) and fair shares of
  processor time;
- programs of several runs share the server's user id; when the trainer is root, that id is root's without its
  capabilities;
- level "process" keeps no program from reading or writing the user's files, using the network, or signalling the user's
  processes;
- a program can forge its own status and value, never those of another run.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.concurrency import PerLoopSemaphore
from retool_mcore.sandbox.isolation import LEVELS
from retool_mcore.sandbox.wire import encode_request, read_reply

PRELOAD = ("math", "cmath", "fractions", "decimal", "itertools", "collections", "random", "numpy", "scipy", "sympy")
START_TIMEOUT_S = 120.0
# How long past its own limit a run may take to come back before the sandbox counts as broken.
REPLY_GRACE_S = 60.0
_BOOT = """
import json, sys
sys.path.insert(0, sys.argv[1])
from retool_mcore.sandbox import server
del sys.path[0]
server.serve(int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
"""


@dataclass
class _Server:
    process: subprocess.Popen
    control: socket.socket
    base_dir: str
    owner: int

    def end(self) -> None:
        """Hang up, which ends the server, and remove what it could not if it was killed."""
        self.control.close()
        self.process.wait()
        shutil.rmtree(self.base_dir, ignore_errors=True)


class LocalSandbox:
    """Runs programs on this machine. The server starts with the first run, again if it died, and anew after a fork.

    `workers` bounds the runs at once in each event loop. `level` and `level_reason` say, once started, how isolated
    programs are and why not more. `try_namespaces=False` stays at level "process" even where more is possible.
    """

    def __init__(
        self,
        *,
        timeout_s: float = 5.0,
        memory_mb: int = 1024,
        max_output_bytes: int = 16384,
        workers: int | None = None,
        min_isolation: str = "process",
        preload: Sequence[str] = PRELOAD,
        try_namespaces: bool = True,
    ):
        self.timeout_s = timeout_s
        self.min_isolation = min_isolation
        self.level: str | None = None
        self.level_reason = ""
        self._options = {
            "memory_mb": memory_mb,
            "max_output_bytes": max_output_bytes,
            "preload": list(preload),
            "try_namespaces": try_namespaces,
        }
        self._limit = PerLoopSemaphore(workers or max(2, os.cpu_count() or 2))
        self._server: _Server | None = None
        self._lock = threading.Lock()
        self._lock_owner = os.getpid()

    async def start(self) -> None:
        """Start the server if none is running. Raises UserError when this host cannot give the isolation asked for."""
        if not self._running():
            await asyncio.to_thread(self._start)

    async def run(self, code: str, *, timeout_s: float | None = None, stdin: str = "") -> Result:
        """See Sandbox.run. The first run also starts the server; that time is not part of the program's."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        async with self._limit.slot():
            for _ in range(2):
                await self.start()
                try:
                    connection = self._connect()
                except OSError:
                    continue  # The server died since we looked; the next round starts another.
                return await _exchange(connection, encode_request(code, stdin, timeout_s), timeout_s)
        return Result(Status.SANDBOX, "", "the sandbox server does not stay alive\n", None, 0.0)

    async def close(self) -> None:
        """End the server and, with it, all running programs. Does nothing in a fork that never ran a program."""
        server, self._server = self._server, None
        if server is not None and server.owner == os.getpid():
            await asyncio.to_thread(server.end)

    def _running(self) -> bool:
        server = self._server
        return server is not None and server.owner == os.getpid() and server.process.poll() is None

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._server.control, [b"r"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def _start(self) -> None:
        if self._lock_owner != os.getpid():
            # Forked while another thread held it: nobody here will ever release it.
            self._lock, self._lock_owner = threading.Lock(), os.getpid()
        with self._lock:
            if self._running():
                return
            if self._server is not None:
                if self._server.owner == os.getpid():
                    self._server.end()
                else:
                    self._server.control.close()
            self._server = None
            server, hello = _launch(self._options)
            if hello["error"]:
                server.end()
                raise UserError(f"The local sandbox cannot start: {hello['error']}.")
            self.level, self.level_reason = hello["level"], hello["reason"]
            if LEVELS.index(self.level) < LEVELS.index(self.min_isolation):
                server.end()
                raise UserError(
                    f"sandbox.min_isolation is {self.min_isolation!r} but this host allows only {self.level!r} "
                    f"({self.level_reason}). Allow user namespaces or lower sandbox.min_isolation."
                )
            self._server = server


def _launch(options: dict) -> tuple[_Server, dict]:
    if sys.platform != "linux":
        raise UserError("The local sandbox needs Linux; set sandbox.kind=fusion and sandbox.url on this machine.")
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    package_root = str(Path(__file__).resolve().parents[2])
    base_dir = tempfile.mkdtemp(prefix="retool-sandbox-")
    options = options | {"base_dir": base_dir}
    arguments = [package_root, str(theirs.fileno()), str(os.getpid()), json.dumps(options)]
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", _BOOT, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
            env=_environment(),
            cwd="/",
            start_new_session=True,
        )
    control.settimeout(START_TIMEOUT_S)
    try:
        message = control.recv(65536)
    except TimeoutError:
        message = b""
    if not message:
        process.kill()
        last_line = process.communicate()[1].decode("utf-8", "replace").strip().split("\n")[-1]
        _Server(process, control, base_dir, os.getpid()).end()
        raise UserError(f"The local sandbox did not start: {last_line or 'no answer'}.")
    process.stderr.close()
    return _Server(process, control, base_dir, os.getpid()), json.loads(message)


def _environment() -> dict[str, str]:
    """Nothing of ours but where shared libraries are; one thread a program; sets in the same order in every run."""
    fixed = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return fixed | threads | libraries


async def _exchange(connection: socket.socket, request: bytes, timeout_s: float) -> Result:
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        writer.write(request)
        await writer.drain()
        return await asyncio.wait_for(read_reply(reader), timeout_s + REPLY_GRACE_S)
    except (OSError, EOFError, TimeoutError) as error:
        reason = f"the sandbox did not answer ({type(error).__name__})\n"
        return Result(Status.SANDBOX, "", reason, None, 0.0)
    finally:
        # Closing is also what cancels a run: the supervisor sees it and kills the program.
        writer.close()
