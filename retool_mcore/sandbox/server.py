"""The warm server: imports numpy and the like once, then forks itself for every run.

A process of its own, started with the trainer's Python but none of its memory, sockets or environment. It lives as
long as the trainer's process: it ends when the control socket closes or its parent changes, whichever is seen first.
"""

import gc
import importlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import time

from retool_mcore.sandbox import isolation
from retool_mcore.sandbox.child import Settings
from retool_mcore.sandbox.supervisor import supervise

PARENT_CHECK_S = 1.0
GRACE_S = 2.0
# Supervisors, with their confined child, that stand ready: making one takes longer than most programs run.
SPARES = 2


def serve(control_fd: int, parent: int, options: dict) -> None:
    """Say hello {level, reason, error} on the control socket, then fork once for each connection passed over it.

    `options`: memory_mb, max_output_bytes, preload, try_namespaces, base_dir (an empty folder, removed at the end).
    """
    control = socket.socket(fileno=control_fd)
    base_dir = options["base_dir"]
    try:
        folders = isolation.python_folders()
        level, reason = "process", "namespaces were not asked for"
        if options["try_namespaces"]:
            level, reason = isolation.detect(base_dir, folders)
        error = _preload(options["preload"])
        control.send(json.dumps({"level": level, "reason": reason, "error": error}).encode())
        if error:
            return
        # One socket a run passes through here; the soft limit of many hosts is only 1024.
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536) if hard > 0 else 65536, hard))
        # Objects made so far are left alone by the collector, so that forks share their pages for longer.
        gc.collect()
        gc.freeze()
        settings = Settings(level, folders, base_dir, options["memory_mb"], options["max_output_bytes"])
        _accept(control, parent, settings)
    finally:
        shutil.rmtree(base_dir, ignore_errors=True)


def _preload(names: list[str]) -> str:
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"the module {name!r} cannot be preloaded ({error})"
    return ""


def _accept(control: socket.socket, parent: int, settings: Settings) -> None:
    wake, wake_writer = socket.socketpair()
    wake_writer.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake, selectors.EVENT_READ)
    supervisors: set[int] = set()
    spares: list[socket.socket] = []

    def make_spare() -> socket.socket:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            _run_supervisor(theirs, settings, (control, wake, wake_writer, selector, ours, *spares))
        theirs.close()
        supervisors.add(pid)
        return ours

    # A forked copy of the trainer may hold the control socket open beyond the trainer's end: hence the look at getppid.
    while os.getppid() == parent:
        # Spares are replaced when nothing else is to be done.
        ready = {key.fileobj for key, _ in selector.select(PARENT_CHECK_S if len(spares) == SPARES else 0)}
        if wake in ready:
            wake.recv(4096)
            supervisors -= _reap()
        if control in ready:
            message, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                break
            _hand_over(fds[0], spares or [make_spare()])
        elif len(spares) < SPARES:
            spares.append(make_spare())
    for spare in spares:
        spare.close()
    _end(supervisors)


def _hand_over(connection: int, spares: list[socket.socket]) -> None:
    while spares:
        with spares.pop(0) as spare:
            try:
                socket.send_fds(spare, [b"r"], [connection])
            except OSError:
                continue  # That one was killed, for lack of memory perhaps; the next may live.
        break
    # If none took it, this is what tells the caller.
    os.close(connection)


def _run_supervisor(handover: socket.socket, settings: Settings, inherited: tuple) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for resource_of_server in inherited:
            resource_of_server.close()
        supervise(handover, settings)
    finally:
        # The caller sees the end of the connection; nothing of the server may run here any more.
        os._exit(0)


def _reap() -> set[int]:
    ended = set()
    try:
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.add(pid)
    except ChildProcessError:
        return ended
    return ended


def _end(supervisors: set[int]) -> None:
    """Let running supervisors kill their programs and clean up; they die with this process if they are too slow."""
    for pid in supervisors:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while supervisors and time.monotonic() < deadline:
        supervisors -= _reap()
        time.sleep(0.005)
