r"""The process that has math-verify loaded and forks one worker a request: a killed worker is replaced in milliseconds.

The parent (`pool.py`) talks to it over a Unix socket: `s` with one end of a socket pair attached forks a worker on that
end and replies with its id, `k<id>\n` kills that worker and replies `ok`. The zygote never compares anything itself, so
it always answers. A worker gets one JSON line `{"answer", "truth"}`, perhaps with "rounded", and gives one,
`{"equal"}`. Everything ends when the parent's sockets close.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys

from retool_mcore.rewards.grader import engine


def serve_pairs(connection: socket.socket, limit_s: float) -> None:
    """Answer requests until the other end closes. One that outlives `limit_s` ends the process: the parent is gone."""
    # The default action of the signal kills even in C code.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
    with connection, connection.makefile("rwb") as lines:
        for line in lines:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, limit_s)
            try:
                equal = engine.compare(**request)
            except Exception:  # sympy raises anything, RecursionError and MemoryError included
                equal = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            lines.write(json.dumps({"equal": equal}).encode() + b"\n")
            lines.flush()


def _fork(control: socket.socket, end: int, limit_s: float, memory_mb: int) -> int:
    pid = os.fork()
    if pid:
        os.close(end)
        return pid
    try:
        control.close()
        resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
        serve_pairs(socket.socket(fileno=end), limit_s)
    finally:
        os._exit(0)


def _reap(children: set[int]) -> None:
    for pid in list(children):
        if os.waitpid(pid, os.WNOHANG)[0]:
            children.discard(pid)


def main(descriptor: int, limit_s: float, memory_mb: int) -> None:
    """Serve the parent behind `descriptor` until it closes its end; `ready` comes first, after the warm-up."""
    os.dup2(2, 1)  # whatever a library prints is no reply
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    engine.warm_up()
    gc.freeze()  # a collection in a worker would copy every page of sympy
    control = socket.socket(fileno=descriptor)
    control.sendall(b"ready\n")
    children: set[int] = set()
    while True:
        message, ends, _, _ = socket.recv_fds(control, 64, 1)
        if not message:
            break
        _reap(children)
        if message == b"s\n":
            pid = _fork(control, ends[0], limit_s, memory_mb)
            children.add(pid)
            control.sendall(f"{pid}\n".encode())
        elif message.startswith(b"k"):
            pid = int(message[1:])
            if pid in children:  # not reaped, so the id is still this child's
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                children.discard(pid)
            control.sendall(b"ok\n")
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    sys.exit(0)
