r"""The process that has math-verify loaded and forks one worker a request: a killed worker is replaced in milliseconds.

The parent (`pool.py`) talks to it over a Unix socket: `fork`, with one end of a pair of connections behind it, forks a
worker on that end and has its id for an answer; a worker's id kills that worker. The zygote never compares anything
itself, so it always answers. A worker gets JSON, {"answer", "truth"} and perhaps "rounded", and gives true or false.
Everything ends when the parent's sockets close.
"""

import gc
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection

from retool_mcore.rewards.grader import engine


def serve_pairs(connection: Connection, limit_s: float) -> None:
    """Answer requests until the other end closes. One that outlives `limit_s` ends the process: the parent is gone."""
    # The default action of the signal kills even in C code.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with suppress(EOFError):
        while True:
            request = json.loads(connection.recv_bytes())
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            try:
                equal = engine.compare(**request)
            except Exception:  # sympy raises anything, RecursionError and MemoryError included
                equal = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            connection.send_bytes(json.dumps(equal).encode())


def _fork(control: Connection, end: int, limit_s: float, memory_mb: int) -> int:
    pid = os.fork()
    if pid:
        os.close(end)
        return pid
    try:
        control.close()
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
        serve_pairs(Connection(end), limit_s)
    finally:
        os._exit(0)


def main(descriptor: int, limit_s: float, memory_mb: int) -> None:
    """Serve the parent behind `descriptor` until it closes its end; `ready` comes first, after the warm-up."""
    os.dup2(2, 1)  # whatever a library prints is no reply
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engine.warm_up()
    gc.freeze()  # a collection in a worker would copy every page of sympy
    control = Connection(descriptor)
    control.send_bytes(b"ready")
    children: set[int] = set()
    with suppress(EOFError, ConnectionError):
        while True:
            message = control.recv_bytes()
            children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
            if message == b"fork":
                pid = _fork(control, reduction.recv_handle(control), limit_s, memory_mb)
                children.add(pid)
            else:
                pid = int(message)
                if pid in children:  # not reaped, so the id is still this child's
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    children.discard(pid)
            control.send_bytes(b"%d" % pid)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit(0)
