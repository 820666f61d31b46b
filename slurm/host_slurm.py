#!/usr/bin/env python3
"""Runs Slurm's commands on the host for a job whose program is in a container, where there are none.

    host_slurm.py COMMAND...     on the host: runs COMMAND (srun --container-image=..., apptainer exec ...) beside a
                                 server in the empty folder RETOOL_HOST_SLURM; hands signals on, ends with COMMAND's
                                 exit code, after what HOST_SLURM_AFTER says to bash
    RETOOL_HOST_SLURM/srun ...   in the container, where that folder is mounted: the server runs the host's srun with
                                 the caller's output and environment, hands signals on, and gives its exit code

Of the environment PATH, the libraries' and Slurm's own variables are the host's. Standard library only, for the Python
that a cluster's nodes have: 3.6 or later. The folder can be entered by the user alone.
"""

import array
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

COMMANDS = ("srun", "scontrol", "squeue", "sacct", "sinfo")
FOLDER = "RETOOL_HOST_SLURM"
AFTER = "HOST_SLURM_AFTER"
SOCKET = "socket"
OF_HOST = ("SLURM_", "SRUN_", "SPANK_", "PYXIS_", "ENROOT_", "APPTAINER", "SINGULARITY")
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
LINGER_S = (
    25.0  # less than Slurm gives a batch script that was told to end: the guard of a killed job asks for its requeue
)
LIBC = ctypes.CDLL(None)  # loaded here: between fork and exec it is too late
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def host_env(asked):
    """`asked`, the environment of a caller in the container, as it must be for a program of the host."""
    own = {name: value for name, value in os.environ.items() if is_hosts(name)}
    return dict({name: value for name, value in asked.items() if not is_hosts(name)}, **own)


def is_hosts(name):
    return name in ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "HOME") or name.startswith(OF_HOST)


def ask(name, arguments):
    """In the container: has the server run `name`; its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), SOCKET))
    for signum in SIGNALS:
        signal.signal(signum, lambda number, _: connection.sendall(b"%d\n" % number))
    request = json.dumps({"command": [name] + arguments, "env": dict(os.environ), "cwd": os.getcwd()}).encode()
    streams = array.array("i", [0, 1, 2])
    connection.sendmsg([b"%d\n" % len(request)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.sendall(request)
    answer = connection.makefile("rb").readline()
    return int(answer) if answer else 1


def serve(connection, running):
    """One command of the container's: runs it to its end, or until its caller is gone."""
    streams = array.array("i")
    try:
        head, ancillary, _, _ = connection.recvmsg(16, socket.CMSG_LEN(3 * streams.itemsize))
        for _, _, data in ancillary:
            streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
        size, _, body = head.partition(b"\n")
        while len(body) < int(size):
            body += connection.recv(1 << 16)
        asked = json.loads(body.decode())
        command, cwd = asked["command"], asked["cwd"]
        if command[0] not in COMMANDS:
            raise ValueError("no command of Slurm: " + command[0])
        process = subprocess.Popen(
            command,
            env=host_env(asked["env"]),
            cwd=cwd if os.path.isdir(cwd) else "/",
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
        )
    except (OSError, ValueError, KeyError, IndexError) as error:
        if len(streams) == 3:
            os.write(streams[2], f"host_slurm: {error}\n".encode())
        connection.sendall(b"127\n")
        return
    finally:
        for stream in streams:
            os.close(stream)
    running.add(process)
    threading.Thread(target=hand_on, args=(connection, process), daemon=True).start()
    code = process.wait()
    running.discard(process)
    with suppress(OSError):  # its caller is gone
        connection.sendall(b"%d\n" % (code if code >= 0 else 128 - code))


def hand_on(connection, process):
    for line in connection.makefile("rb"):
        process.send_signal(int(line))
    if process.poll() is None:  # the caller was killed
        process.terminate()


def run(command):
    """On the host: `command` beside the server; its exit code."""
    folder = os.environ[FOLDER]
    shutil.copy(os.path.abspath(__file__), os.path.join(folder, "host_slurm.py"))
    for name in COMMANDS:
        os.symlink("host_slurm.py", os.path.join(folder, name))
    server = socket.socket(socket.AF_UNIX)
    server.bind(os.path.join(folder, SOCKET))
    server.listen(64)
    running = set()

    def accept():
        while True:
            connection, _ = server.accept()
            threading.Thread(target=guarded, args=(connection, running), daemon=True).start()

    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGHUP)  # slurmstepd was killed
    process = subprocess.Popen(command, preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGHUP))
    for signum in SIGNALS:
        signal.signal(signum, lambda number, _: process.send_signal(number))
    threading.Thread(target=accept, daemon=True).start()
    code = process.wait()
    wait_for(running)  # none, unless it was killed: then the guard, a step of its own, asks for the job's requeue
    for left in list(running):
        left.kill()
    if AFTER in os.environ:
        subprocess.call(["timeout", "30", "bash", "-c", os.environ[AFTER]], stderr=subprocess.DEVNULL)
    return code if code >= 0 else 128 - code


def guarded(connection, running):
    try:
        serve(connection, running)
    finally:
        connection.close()


def wait_for(running):
    over = threading.Event()
    for _ in range(int(LINGER_S / 0.2)):
        if not running:
            return
        over.wait(0.2)


def main():
    name = os.path.basename(sys.argv[0])
    if name in COMMANDS:
        return ask(name, sys.argv[1:])
    try:
        return run(sys.argv[1:])
    finally:
        shutil.rmtree(os.environ[FOLDER], ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
