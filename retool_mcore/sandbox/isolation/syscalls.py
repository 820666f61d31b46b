"""The system calls that Python 3.11 does not wrap, through ctypes. Every function raises OSError with the call's name.

Calls go through `PyDLL`, which keeps the interpreter lock: a raw clone must not come back in a child whose lock
belongs to nobody.
"""

import ctypes
import os
import platform
import signal

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWUSER = 0x20000, 0x04000000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 4, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
CAPABILITY_VERSION_3 = 0x20080522
MADV_COLLAPSE = 25
RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH = 0x02, 0x04, 0x08

MACHINE = platform.machine()
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR, SYS_OPENAT2 = 442, 437
SYS_LANDLOCK_CREATE_RULESET, SYS_LANDLOCK_ADD_RULE, SYS_LANDLOCK_RESTRICT_SELF = 444, 445, 446

libc = ctypes.PyDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def check(value: int, name: str) -> int:
    """`value`, the result of a call of libc; raises OSError when it is negative."""
    if value < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return value


def syscall(number: int, name: str, *arguments) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return check(libc.syscall(ctypes.c_long(number), *words), name)


def prctl(option: int, value) -> None:
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    check(libc.prctl(option, argument, *[ctypes.c_ulong(0)] * 3), f"prctl {option}")


def unshare(flags: int) -> None:
    check(libc.unshare(flags), "unshare")


def setns(fd: int, flags: int) -> None:
    """Enter the namespaces `flags` of the process that the pidfd `fd` stands for."""
    check(libc.setns(fd, flags), "setns")


def clone(flags: int) -> int:
    """A fork into new namespaces. The child may do little: no hook of Python or of the C library has run in it."""
    return syscall(SYS_CLONE[MACHINE], "clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    names = source.encode(), target.encode(), kind.encode() if kind else None
    check(libc.mount(*names, ctypes.c_ulong(flags), options.encode() or None), f"mount {target}")


def set_mount_attributes(path: str, flags: int, set_bits: int, clear_bits: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(set_bits, clear_bits, 0, 0)
    size = ctypes.sizeof(attributes)
    syscall(SYS_MOUNT_SETATTR, "mount_setattr (Linux 5.12)", AT_FDCWD, path.encode(), flags, attributes, size)


def pivot_root_here() -> None:
    """Make the working directory, a mount point, the root, and let go of the old one."""
    syscall(SYS_PIVOT_ROOT[MACHINE], "pivot_root", b".", b".")
    check(libc.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def detach_mount(path: str) -> None:
    """Unmount it here and now; what is open in it stays so."""
    check(libc.umount2(path.encode(), MNT_DETACH), f"umount2 {path}")


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open `path` below the folder's descriptor; no symbolic link is followed, no step leaves the folder."""
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS)
    return syscall(SYS_OPENAT2, "openat2 (Linux 5.6)", folder, os.fsencode(path), how, ctypes.sizeof(how))


def die_with_parent() -> None:
    """Be killed when the thread that forked us ends. A change of user id or user namespace undoes it."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may look into this one's memory (and it may write its own uid_map)."""
    prctl(PR_SET_DUMPABLE, int(dumpable))


def collapse_into_huge_pages(address: int, size: int) -> bool:
    """Whether the kernel could do it."""
    return libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), MADV_COLLAPSE) == 0


def drop_privileges() -> None:
    """Drop all capabilities: none can come back through exec, and no setuid file has an effect."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    check(libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def become(uid: int | None) -> None:
    """Give root up for good for the user id `uid`; None changes nothing. Raises OSError."""
    if uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # A change of user id takes the right to write one's own uid_map away.
    set_dumpable(True)
