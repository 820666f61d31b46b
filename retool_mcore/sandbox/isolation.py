"""Linux namespaces, capabilities and resource limits, and which of them this machine allows.

Python 3.11 has no `os.unshare`, hence ctypes. Everything here runs in a process that was forked for one program and
has one thread: a user namespace cannot be entered by a process with several.

Levels, from weak to strong:
- "process": own session, resource limits, no new privileges, descendants found and killed.
- "namespaces": also own user, pid, mount, network and ipc namespaces; the file system is read-only and holds only the
  system's libraries and this Python; no network; an empty /tmp in memory.
"""

import contextlib
import ctypes
import os
import platform
import resource
import signal
import sys

LEVELS = ("none", "process", "namespaces")
INNER_UID = 1000
WORK_DIR = "/tmp/program"

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 36, 38
AT_FDCWD, AT_RECURSIVE, SYS_MOUNT_SETATTR = -100, 0x8000, 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPABILITY_VERSION_3 = 0x20080522

SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32")
SYSTEM_FILES = ("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/alternatives", "/etc/fonts")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments) -> None:
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    kind_bytes = kind.encode() if kind else None
    _call("mount", source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), options.encode() or None)


def die_with_parent() -> None:
    """Be killed when the thread that forked us ends. Must come after a change of user namespace, which resets it."""
    _call("prctl", PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def adopt_orphans() -> None:
    """Descendants whose parent ends become our children, so that none can hide from `kill_descendants`."""
    _call("prctl", PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def enter_namespaces() -> None:
    """Leave for new user, network and ipc namespaces; the next child is process 1 of a new pid namespace."""
    uid, gid = os.getuid(), os.getgid()
    _call("unshare", CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNET)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{INNER_UID} {uid} 1"), ("gid_map", f"{INNER_UID} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _bind(root: str, path: str) -> None:
    target = root + path
    if os.path.islink(path) and path in SYSTEM_FOLDERS:
        os.symlink(os.readlink(path), target)
    elif os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
        _mount(path, target, None, MS_BIND | MS_REC)
    elif os.path.exists(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        _mount(path, target, None, MS_BIND)


def python_folders() -> list[str]:
    """The folders this Python needs besides the system's, outermost first and none inside another."""
    wanted = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        *sys.path,
        *os.environ.get("LD_LIBRARY_PATH", "").split(":"),
    ]
    kept = list(SYSTEM_FOLDERS)
    for path in sorted({os.path.abspath(p) for p in wanted if p and os.path.isdir(p)}, key=len):
        if path != "/" and not any(path == k or path.startswith(k + "/") for k in kept):
            kept.append(path)
    return kept[len(SYSTEM_FOLDERS) :]


def enter_root(mount_point: str, folders: list[str], tmp_mb: int) -> None:
    """Move process 1 of a pid namespace into a read-only tree whose only writable part is an empty /tmp."""
    _call("unshare", CLONE_NEWNS)
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    root = mount_point
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for folder in ("/tmp", "/proc", "/dev/shm"):
        os.makedirs(root + folder)
    writable = [(root + "/tmp", tmp_mb), (root + "/dev/shm", tmp_mb)]
    for path, size_mb in writable:
        _mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size_mb}m,mode=700")
    for path in (*SYSTEM_FOLDERS, *SYSTEM_FILES, *folders, *DEVICES):
        _bind(root, path)
    _set_attributes(root, AT_RECURSIVE, MS_RDONLY | MS_NOSUID, 0)
    for path, _ in writable:
        _set_attributes(path, 0, 0, MS_RDONLY)
    # A container that masks parts of /proc forbids new ones; the folder then stays empty.
    with contextlib.suppress(PermissionError):
        # Read-only, because root's uid may write sysctl files such as core_pattern even without a capability.
        _mount("proc", root + "/proc", "proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.chdir(root)
    if libc.syscall(SYS_PIVOT_ROOT[platform.machine()], b".", b".") != 0:
        raise OSError(ctypes.get_errno(), "pivot_root: " + os.strerror(ctypes.get_errno()))
    _call("umount2", b".", MNT_DETACH)
    # Not /tmp itself, which on some hosts holds this Python and so its mount point.
    os.mkdir(WORK_DIR)
    os.chdir(WORK_DIR)


def _set_attributes(path: str, flags: int, set_bits: int, clear_bits: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(set_bits, clear_bits, 0, 0)
    if libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, ctypes.sizeof(attributes)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount_setattr (Linux 5.12): {os.strerror(code)}")


def drop_privileges() -> None:
    """No capability is left, none can come back through exec, and no setuid file has an effect."""
    _call("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def set_limits(memory_mb: int, cpu_s: int, file_mb: int, max_files: int, max_processes: int | None) -> None:
    """Resource limits of the program and, each for itself, its children.

    `memory_mb` is address space on top of what the warm interpreter maps already; a little more stays free between
    the soft and the hard limit so that a MemoryError can still be reported. `max_processes` None sets no limit:
    outside of a user namespace the kernel would count all of the user's processes.
    """
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    memory = mapped + memory_mb * 2**20
    limits = {
        resource.RLIMIT_AS: (memory, memory + 64 * 2**20),
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_FSIZE: (file_mb * 2**20, file_mb * 2**20),
        resource.RLIMIT_NOFILE: (max_files, max_files),
        resource.RLIMIT_CORE: (0, 0),
    }
    if max_processes is not None:
        limits[resource.RLIMIT_NPROC] = (max_processes, max_processes)
    for kind, (soft, hard) in limits.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def descendants(pid: int) -> list[int]:
    """Process ids below `pid` at this moment, parents before children."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in file.read().split():
                    found += [int(child), *descendants(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        pass  # It ended while we looked.
    return found


def detect(mount_point: str, folders: list[str]) -> tuple[str, str]:
    """The strongest level that works here, tried out in a child, and why it is not stronger ("" if it is)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _try_namespaces(mount_point, folders, writer)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        reason = pipe.read()
    _, status = os.waitpid(child, 0)
    if status == 0:
        return "namespaces", ""
    return "process", reason or "namespaces cannot be entered"


def _try_namespaces(mount_point: str, folders: list[str], writer: int) -> None:
    try:
        enter_namespaces()
        inner = os.fork()
        if inner:
            os._exit(1 if os.waitpid(inner, 0)[1] else 0)
        enter_root(mount_point, folders, tmp_mb=1)
        drop_privileges()
        os.stat(sys.executable)
        with open("/tmp/probe", "w"):
            os._exit(0)
    except (OSError, KeyError) as error:
        os.write(writer, str(error).encode())
        os._exit(1)
