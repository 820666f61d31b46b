"""The program's side of a run: a fork of the zygote shuts itself in for good, waits for the program's text, runs it and
ends as the program did, which its parent sees. In a session it says so itself and waits for the next text.

All that can be done before the text is known is done while nobody waits for it.
"""

import json
import os
import signal
import socket

from retool_mcore.sandbox.isolation import limits
from retool_mcore.sandbox.isolation.confine import Confinement
from retool_mcore.sandbox.isolation.syscalls import die_with_parent
from retool_mcore.sandbox.local.program import VALUE_FD, Interpreter, write_all
from retool_mcore.sandbox.local.wire import LENGTHS, frame, unpack_files

CONTROL_FD = 3
OUT_OF_MEMORY = signal.SIGRTMAX  # what a program's process ends by when its memory did not suffice
EXIT = os._exit  # a program may replace the name


def be_program(
    confinement: Confinement, init: int | None, work_dir: str, fds: list[int], mapped_bytes: int, max_value_bytes: int
) -> None:
    """Never returns. `fds`: stdout, stderr, the control socket, over which each request comes as one byte with the
    descriptors of its frame and, if there is any, its standard input, and where a final expression is shown."""
    try:
        try:
            control = _shut_in(confinement, init, work_dir, fds)
        except OSError as error:
            write_all(fds[2], frame({"failed": str(error)}))
            _leave(1)
        interpreter = Interpreter(os.getcwd(), max_value_bytes)
        program = os.getpid()
        while True:
            message, received, _, _ = socket.recv_fds(control, 1, 2)
            if not message:
                _leave(0)
            try:
                wanted = _prepare(received, mapped_bytes)
            except (OSError, ValueError) as error:
                write_all(CONTROL_FD, frame({"failed": str(error)}))
                _leave(1)
            # From here on the program must not be able to say that the sandbox failed.
            write_all(CONTROL_FD, frame({"begun": True}))
            if wanted["session"] is None:
                control.close()
            exit_code = interpreter.execute(wanted["code"])
            # A fork made by the program may have run to the end of the text as well.
            if wanted["session"] is None or exit_code is None or os.getpid() != program:
                _end(exit_code)
            write_all(CONTROL_FD, frame({"exit_code": exit_code}))
    finally:
        _leave(1)


def _leave(exit_code: int) -> None:
    """End this process, come what may: what is below on its stack is the zygote's and the server's."""
    while True:
        try:
            EXIT(exit_code)
        except BaseException:
            continue


def _end(exit_code: int | None) -> None:
    if exit_code is None:
        signal.signal(OUT_OF_MEMORY, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [OUT_OF_MEMORY])
        os.kill(os.getpid(), OUT_OF_MEMORY)
    _leave(exit_code or 0)


def _shut_in(confinement: Confinement, init: int | None, work_dir: str, fds: list[int]) -> socket.socket:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The descriptors' own numbers may be among those they shall get, so they are first moved out of the way.
    null = os.open(os.devnull, os.O_RDONLY)
    moved = [os.dup2(fd, 32 + index) for index, fd in enumerate((null, *fds))]
    if init is not None:
        init = os.dup2(init, 63)
    for target, fd in enumerate(moved):
        os.dup2(fd, target, inheritable=target < CONTROL_FD)
    fds[2] = CONTROL_FD
    os.closerange(VALUE_FD + 1, 63)
    os.closerange(64, 1 << 20)
    confinement.enter(init, work_dir)
    if init is not None:
        os.close(init)
    die_with_parent()
    return socket.socket(fileno=CONTROL_FD)


def _prepare(received: list[int], mapped_bytes: int) -> dict:
    with open(received[0], "rb") as file:
        header_size, _ = LENGTHS.unpack(file.read(LENGTHS.size))
        wanted = json.loads(file.read(header_size))
        for path, data in unpack_files(wanted["files"], file.read()).items():
            if os.path.dirname(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as target:
                target.write(data)
    if len(received) > 1:
        os.dup2(received[1], 0)
        os.close(received[1])
    limits.set_memory_limit(wanted["memory_mb"], mapped_bytes)
    limits.set_cpu_limit(2 * int(wanted["timeout_s"] + 1), last=wanted["session"] is None)
    return wanted
