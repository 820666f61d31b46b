"""Process 1 of a run's namespaces, which outlives the run: it kills and clears what a run left, for the next one.

It is there because process 1 of a pid namespace ignores signals that have no handler, which a program must not, and
because killing it kills all that is in the namespace. What programs could leave behind in the namespaces is processes,
which it kills, and files, whose file system it replaces: the filter refuses them keys, SysV and POSIX message objects,
and they have no capability to change a network, a mount or a limit with.

server -> init: "clear" when the program has reported or ended
init -> server: "ok" with the descriptor of an empty working folder when a program may begin, first of all and after
                each "gone"; "gone" when nothing of the program lives; otherwise what failed, at its own end
"""

import os
import signal
import socket
import time

from retool_mcore.sandbox.isolation import syscalls as linux
from retool_mcore.sandbox.isolation.namespaces import INNER_ID, RUN_NAMESPACES, SHM_DIR, WORK_DIR, is_below, map_ids

# The program itself is reaped by the zygote, not by us: there is nothing to wait on but time.
POLL_S = 0.0003


def start_init(tmp_options: str, folders: list[str]) -> tuple[int, socket.socket]:
    """(process id, socket) of a new init; see above for what it says. Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        pid = linux.clone(RUN_NAMESPACES | linux.CLONE_NEWPID)
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        _be_init(theirs, tmp_options, folders)
    theirs.close()
    return pid, ours


def _be_init(server: socket.socket, tmp_options: str, folders: list[str]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        # Orphans are reaped by the kernel.
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(server.fileno(), 3)
        os.closerange(4, 1 << 20)
        server = socket.socket(fileno=3)
        linux.die_with_parent()
        try:
            map_ids(INNER_ID, INNER_ID)
            # This Python may itself be below /tmp, where the new file system would hide it.
            hidden = [(path, os.open(path, os.O_PATH)) for path in folders if is_below(path, ["/tmp"])]
            _mount_tmp(tmp_options, hidden)
            _mount_proc()
            os.closerange(0, 3)
            # Its capabilities, over these namespaces only, stay: they keep programs from looking into it.
            while True:
                folder = os.open(WORK_DIR, os.O_RDONLY | os.O_DIRECTORY)
                socket.send_fds(server, [b"ok"], [folder])
                os.close(folder)
                if server.recv(16) != b"clear":
                    os._exit(0)
                _kill_all()
                server.send(b"gone")
                linux.detach_mount("/tmp")
                _mount_tmp(tmp_options, hidden)
        except OSError as error:
            server.send(str(error).encode())
    finally:
        os._exit(1)


def _kill_all() -> None:
    """Returns when this process is alone in its pid namespace."""
    while os.getpid() == 1:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        time.sleep(POLL_S)
    os._exit(1)


def _mount_tmp(options: str, hidden: list[tuple[str, int]]) -> None:
    linux.mount("tmpfs", "/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)
    for path, fd in hidden:
        os.makedirs(path)
        linux.mount(f"/proc/self/fd/{fd}", path, None, linux.MS_BIND | linux.MS_REC)
    os.mkdir(WORK_DIR)
    os.mkdir(SHM_DIR)


def _mount_proc() -> None:
    flags = linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    try:
        # Read-only, because root's uid may write sysctl files such as core_pattern even without a capability.
        linux.mount("proc", "/proc", "proc", flags)
    except PermissionError:
        # A container that masks parts of /proc forbids new ones.
        linux.mount("tmpfs", "/proc", "tmpfs", flags, "size=4k,nr_inodes=1")
