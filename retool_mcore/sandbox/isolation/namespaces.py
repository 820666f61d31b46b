"""Level "namespaces": where a program runs.

    server            user, mount, network, ipc and uts namespaces of its own, with a read-only root made once
      inits           user, pid, mount, network and ipc namespaces below those, with private /tmp and /proc
      zygote          as the server; its forks join the namespaces of a waiting init

One program at a time in each (init.py). A user namespace for each, because the kernel counts processes (RLIMIT_NPROC)
by user namespace.
"""

import os
import sys
from collections.abc import Sequence

from retool_mcore.sandbox.isolation import syscalls as linux

INNER_ID = 1000
WORK_DIR = "/tmp/program"
SHM_DIR = "/tmp/.shm"
SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
USERS = f"root:x:0:0::/:/bin/sh\nprogram:x:{INNER_ID}:{INNER_ID}::{WORK_DIR}:/bin/sh\n"
GROUPS = f"root:x:0:\nprogram:x:{INNER_ID}:\n"
RUN_NAMESPACES = linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC


def python_folders(further: Sequence[str] = ()) -> list[str]:
    """The folders this Python needs besides the system's, outermost first and none inside another.

    Not all of sys.path: a package under development drags its whole checkout in. further: folders to show as well.
    """
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    wanted = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *libraries, *further]
    kept = list(SYSTEM_FOLDERS)
    for path in sorted({os.path.abspath(p) for p in wanted if p and os.path.isdir(p)}, key=len):
        if path != "/" and not is_below(path, kept):
            kept.append(path)
    return kept[len(SYSTEM_FOLDERS) :]


def own_package() -> str:
    """Our package, which holds the generated tasks' reference answers: no program may read it."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def hidden_packages(names: Sequence[str], further: Sequence[str] = ()) -> tuple[str, ...]:
    """The folders that no program may read: our own package's and those of the packages `names`, wherever Python or the
    folders `further` have them."""
    places = sorted({os.path.abspath(path) for path in (*sys.path, *further) if path})
    candidates = (os.path.join(place, name) for place in places for name in names)
    return (own_package(), *(path for path in candidates if os.path.isdir(path)))


def without(folders: Sequence[str], hidden: Sequence[str]) -> list[tuple[str, bool]]:
    """(path, whether all below it may be read) that show `folders` but for the folders `hidden` inside them.

    By real paths: the link lib64 -> lib of an environment would show a hidden folder under another name.
    """
    shown: list[tuple[str, bool]] = []
    hidden = [*map(os.path.realpath, hidden)]
    for folder in map(os.path.realpath, folders):
        if any(is_below(folder, [path]) for path in hidden):
            continue
        inner = [path for path in hidden if is_below(path, [folder])]
        shown.append((folder, not inner))
        if inner:
            inside = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
            # What a link leads to is shown by its own name, where it may be.
            overlapping = [path for path in inside if os.path.islink(path) and _touches(os.path.realpath(path), inner)]
            shown += without([path for path in inside if path not in overlapping], inner)
    return shown


def _touches(path: str, hidden: Sequence[str]) -> bool:
    return any(is_below(path, [one]) or is_below(one, [path]) for one in hidden)


def is_below(path: str, folders: list[str]) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def enter_server_namespaces(mount_point: str, folders: list[str], user: int | None, hidden: Sequence[str] = ()) -> None:
    """Move this process, which must have one thread, into its own namespaces with `mount_point` as the new root.

    The new root shows the system's libraries and `folders`, read-only and without what is in the folders `hidden`, and
    the host's /proc, which no program sees.
    `user`, for root only, is the user id to become; root makes the tree first, since that user may not reach `folders`.
    """
    flags = RUN_NAMESPACES | linux.CLONE_NEWUTS
    if user is not None:
        linux.unshare(linux.CLONE_NEWNS)
        _enter_root(mount_point, folders, hidden)
        linux.become(user)
        linux.unshare(flags)
        map_ids(user, user)
        return
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(flags)
    map_ids(uid, gid)
    _enter_root(mount_point, folders, hidden)


def _enter_root(root: str, folders: list[str], hidden: Sequence[str]) -> None:
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", root, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")
    for folder in ("/tmp", "/proc", "/dev", "/etc"):
        os.makedirs(root + folder)
    os.symlink(SHM_DIR, root + "/dev/shm")
    os.symlink("/proc/self/fd", root + "/dev/fd")
    for name, text in (("passwd", USERS), ("group", GROUPS), ("hosts", "127.0.0.1 localhost\n")):
        with open(f"{root}/etc/{name}", "w") as file:
            file.write(text)
    for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *folders, *DEVICES):
        _bind(root, path)
    for path in hidden:
        if is_below(path, [*SYSTEM_FOLDERS, *folders]):
            linux.mount("tmpfs", root + path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4k,mode=755")
    linux.mount("/proc", root + "/proc", None, linux.MS_BIND | linux.MS_REC)
    for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *folders, *DEVICES):
        if not os.path.islink(path) and os.path.exists(path):
            linux.set_mount_attributes(root + path, linux.AT_RECURSIVE, linux.MS_RDONLY | linux.MS_NOSUID, 0)
    linux.set_mount_attributes(root, 0, linux.MS_RDONLY | linux.MS_NOSUID, 0)
    os.chdir(root)
    linux.pivot_root_here()


def map_ids(uid: int, gid: int) -> None:
    """Map this process's ids, `uid` and `gid` outside of its new user namespace, to those that programs have."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INNER_ID} {uid} 1"), ("gid_map", f"{INNER_ID} {gid} 1")):
        fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(fd, text.encode())
        os.close(fd)


def _bind(root: str, path: str) -> None:
    target = root + path
    if os.path.islink(path) and path in SYSTEM_FOLDERS:
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
        linux.mount(path, target, None, linux.MS_BIND | linux.MS_REC)
    elif os.path.exists(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        linux.mount(path, target, None, linux.MS_BIND)


def fork_into(init: int) -> int:
    """os.fork() whose child, in the pid namespace of the init behind the pidfd, has yet to call `join`."""
    linux.setns(init, linux.CLONE_NEWPID)
    return os.fork()


def join(init: int) -> None:
    """The rest of the way: the fork's file system, network and ipc become those of the init."""
    linux.setns(init, RUN_NAMESPACES)
    os.chdir(WORK_DIR)
