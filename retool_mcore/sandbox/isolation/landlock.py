"""Level "landlock": file and, where the kernel has them, network and signal rules for an unprivileged process.

Source: the kernel's Documentation/userspace-api/landlock.rst. The rules hold for the process and all it starts.
"""

import ctypes
import os
import struct
from collections.abc import Sequence

from retool_mcore.sandbox.isolation import syscalls as linux
from retool_mcore.sandbox.isolation.namespaces import DEVICES, SYSTEM_FILES, SYSTEM_FOLDERS, without

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
# Bit 13 (refer) came with ABI 2, 14 (truncate) with 3, 15 (device ioctl) with 5.
RIGHTS_OF_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
NETWORK_TCP = 3
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2
READ_ONLY = EXECUTE | READ_FILE | READ_DIR
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | 1 << 14 | 1 << 15
_VERSION_FLAG, _PATH_BENEATH = 1, 1


def abi() -> int:
    """The kernel's version of Landlock, 0 if it has none."""
    try:
        return linux.syscall(linux.SYS_LANDLOCK_CREATE_RULESET, "landlock", 0, 0, _VERSION_FLAG)
    except OSError:
        return 0


def restrict(work_dir: str, folders: Sequence[str], hidden: Sequence[str] = ()) -> None:
    """Allow reading the system's libraries, `folders` but for those `hidden` in them, and /etc's few harmless files,
    writing only `work_dir`.

    Needs no-new-privileges. Raises OSError.
    """
    version = abi()
    rights = RIGHTS_OF_ABI[min(version, 5)] if version else 0
    network = NETWORK_TCP if version >= 4 else 0
    scope = SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL if version >= 6 else 0
    attributes = struct.pack("=QQQ", rights, network, scope)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = linux.syscall(linux.SYS_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", attributes, size, 0)
    for path, whole in without([*SYSTEM_FOLDERS, *SYSTEM_FILES, *folders], hidden):
        _allow(ruleset, path, (READ_ONLY if whole else READ_DIR) & rights)
    for path in DEVICES:
        _allow(ruleset, path, (READ_FILE | WRITE_FILE) & rights)
    _allow(ruleset, work_dir, rights)
    linux.syscall(linux.SYS_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    fd = os.open(path, os.O_PATH)
    if not os.path.isdir(path):
        rights &= OF_A_FILE
    rule = struct.pack("=Qi", rights, fd)
    linux.syscall(linux.SYS_LANDLOCK_ADD_RULE, "landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    os.close(fd)
