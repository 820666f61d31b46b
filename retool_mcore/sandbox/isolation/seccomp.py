"""The filter of system calls: a classic BPF program made here, for x86_64 and aarch64.

A list of what is denied rather than of what is allowed, because NumPy, BLAS and C++ runtimes use a long and changing
list of harmless calls; in return every call that is newer than the list is denied too (ENOSYS), and so is every call
through another ABI (32-bit, x32).

Sources: linux/filter.h, linux/seccomp.h, the kernel's syscall_64.tbl and asm-generic/unistd.h.
"""

import ctypes
import errno
import struct
from pathlib import Path

from retool_mcore.sandbox.isolation.syscalls import MACHINE, PR_SET_SECCOMP, check, libc

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000
# The last call this list knows: removexattrat of Linux 6.13.
NEWEST_CALL = 466

# {kind: {name: numbers on x86_64 and aarch64, None where the machine lacks it[, index of an argument]}}. Read at
# import: inside its namespaces the server does not see this package.
_CALLS = {
    kind: {name: tuple(None if number == "-" else int(number) for number in numbers)
           for line in lines.splitlines() if line and line[0] != "#" for name, *numbers in [line.split()]}
    for section in Path(__file__).with_name("denied.txt").read_text().split("\n== ")[1:]
    for kind, _, lines in [section.partition(" ==\n")]
}  # fmt: skip
DENIED, UNKNOWN, LEAVES_GROUP, REACHES_OTHERS, KILLS = _CALLS.values()
CLONE, IOCTL, FCNTL, PRCTL = (56, 220), (16, 29), (72, 25), (157, 167)
SOCKET, SOCKETPAIR = (41, 198), (53, 199)
NAMESPACE_FLAGS = 0x7E020000 | 0x80
AF_UNIX = 1
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody's terminal
# Naming who gets the signal when a descriptor is ready: it is sent without a call of its own.
SIGNAL_OWNER_FCNTL = (8, 15)  # F_SETOWN, F_SETOWN_EX
SIGNAL_OWNER_IOCTL = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP

PR_SCHED_CORE = 62  # nobody else may run on the same core then

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
SECCOMP_MODE_FILTER = 2


def filter_program(machine: str, own_pid_namespace: bool, protected: tuple[int, ...] = ()) -> bytes:
    """The instructions (struct sock_filter, 8 bytes each). Raises KeyError for an unknown machine.

    `protected`: process ids that may not be signalled; used where there is no pid namespace.
    """
    column = list(ARCHITECTURES).index(machine)
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]), (_RETURN, 0, 0, KILL_PROCESS)]
    code += [(_LOAD, 0, 0, _NUMBER)]
    if machine == "x86_64":
        code += [(_JUMP_AT_LEAST, 0, 1, X32_BIT), (_RETURN, 0, 0, KILL_PROCESS)]
    code += [(_JUMP_AT_LEAST, 0, 1, NEWEST_CALL + 1), (_RETURN, 0, 0, ERRNO | errno.ENOSYS)]

    def on_call(numbers, body):
        if numbers[column] is not None:
            code.extend([(_JUMP_EQUAL, 0, len(body), numbers[column]), *body])

    def refuse(number):
        return [(_RETURN, 0, 0, ERRNO | number)]

    def refuse_unless(index, test, value, number):
        # The low half of the argument, which is all that the kernel looks at for these calls.
        load = (_LOAD, 0, 0, _ARGUMENTS + 8 * index)
        return [load, (test, 1, 0, value), *refuse(number), (_RETURN, 0, 0, ALLOW)]

    def refuse_if(index, test, values, number):
        body = [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]
        for value in values:
            body += [(test, 0, 1, value & 0xFFFFFFFF), *refuse(number)]
        return [*body, (_RETURN, 0, 0, ALLOW)]

    on_call(PRCTL, refuse_if(0, _JUMP_EQUAL, [PR_SCHED_CORE], errno.EPERM))
    on_call(CLONE, refuse_if(0, _JUMP_ANY_BIT, [NAMESPACE_FLAGS], errno.EPERM))
    ioctls = TERMINAL_INPUT if own_pid_namespace else TERMINAL_INPUT + SIGNAL_OWNER_IOCTL
    on_call(IOCTL, refuse_if(1, _JUMP_EQUAL, ioctls, errno.EPERM))
    on_call(SOCKETPAIR, refuse_unless(0, _JUMP_EQUAL, AF_UNIX, errno.EAFNOSUPPORT))
    if own_pid_namespace:
        on_call(SOCKET, refuse_unless(0, _JUMP_EQUAL, AF_UNIX, errno.EAFNOSUPPORT))
    else:
        # A socket file of the host (Ray, munge) is a door that no file rule shuts.
        on_call(SOCKET, refuse(errno.EACCES))
        on_call(FCNTL, refuse_if(1, _JUMP_EQUAL, SIGNAL_OWNER_FCNTL, errno.EPERM))
        for numbers in LEAVES_GROUP.values():
            on_call(numbers, refuse(0))
        for *those, index in REACHES_OTHERS.values():
            denied = refuse(errno.EPERM)
            on_call(those, denied if index is None else refuse_unless(index, _JUMP_EQUAL, 0, errno.EPERM))
        targets = [-1, *protected, *[-pid for pid in protected]]
        for numbers in KILLS.values():
            on_call(numbers, refuse_if(0, _JUMP_EQUAL, targets, errno.EPERM))
    for numbers in UNKNOWN.values():
        on_call(numbers, refuse(errno.ENOSYS))
    for on_machines in DENIED.values():
        on_call(on_machines, refuse(errno.EPERM))
    code.append((_RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *line) for line in code)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A filter ready for the kernel."""

    def __init__(self, program: bytes):
        self._buffer = ctypes.create_string_buffer(program, len(program))
        self._structure = _Program(len(program) // 8, ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Filter this process and what it starts, for good. Needs no-new-privileges. Raises OSError."""
        mode, none = ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.c_ulong(0)
        check(libc.prctl(PR_SET_SECCOMP, mode, ctypes.byref(self._structure), none, none), "seccomp")


def supported() -> bool:
    return MACHINE in ARCHITECTURES
