"""Programs that talk to the kernel directly: namespaces, mounts, forbidden calls by number, machine code, clocks, limits."""

from tests.support.hostile.hostile_case import (
    BELOW_NAMESPACES,
    ERROR,
    KILLED,
    PROCESS_ONLY,
    REFUSED,
    SUCCESS,
    SYSCALL,
    TIMEOUT,
    Case,
)

X86 = "import platform\nif platform.machine() != 'x86_64':\n    raise SystemExit(0)\n"
# (name, x86-64 number, arguments): calls that no program which computes something needs. Checked against the tables
# of the kernel and of the filters that container run-times ship.
CALLS = [
    ("ptrace_traceme", 101, "0, 0, 0, 0"),
    ("unshare_user", 272, "0x10000000"),
    ("unshare_everything", 272, "0x10000000 | 0x20000 | 0x20000000 | 0x40000000 | 0x8000000"),
    ("unshare_mount", 272, "0x20000"),
    ("unshare_net", 272, "0x40000000"),
    ("setns", 308, "os.open('/proc/self/ns/user', 0) if os.path.exists('/proc/self/ns/user') else 0, 0"),
    ("mount_tmpfs", 165, "ctypes.c_char_p(b'none'), ctypes.c_char_p(b'.'), ctypes.c_char_p(b'tmpfs'), 0, 0"),
    ("mount_proc", 165, "ctypes.c_char_p(b'none'), ctypes.c_char_p(b'.'), ctypes.c_char_p(b'proc'), 0, 0"),
    ("mount_bind", 165, "ctypes.c_char_p(b'/'), ctypes.c_char_p(b'.'), 0, 4096, 0"),
    ("mount_remount", 165, "ctypes.c_char_p(b'none'), ctypes.c_char_p(b'/'), 0, 32, 0"),
    ("umount", 166, "ctypes.c_char_p(b'/proc'), 2"),
    ("pivot_root", 155, "ctypes.c_char_p(b'.'), ctypes.c_char_p(b'.')"),
    ("chroot", 161, "ctypes.c_char_p(b'.')"),
    ("fsopen", 430, "ctypes.c_char_p(b'tmpfs'), 0"),
    ("open_tree_clone", 428, "-100, ctypes.c_char_p(b'/'), 1"),
    (
        "mount_setattr",
        442,
        "-100, ctypes.c_char_p(b'/'), 0, ctypes.create_string_buffer(bytes(23) + b'\\1' + bytes(8)), 32",
    ),
    ("swapon", 167, "ctypes.c_char_p(b'.'), 0"),
    ("reboot", 169, "0xfee1dead, 672274793, 0, 0"),
    ("sethostname", 170, "ctypes.c_char_p(b'hostile'), 7"),
    ("setdomainname", 171, "ctypes.c_char_p(b'hostile'), 7"),
    ("iopl", 172, "3"),
    ("ioperm", 173, "0x80, 1, 1"),
    ("init_module", 175, "ctypes.c_char_p(b''), 0, ctypes.c_char_p(b'')"),
    ("finit_module", 313, "0, ctypes.c_char_p(b''), 0"),
    ("delete_module", 176, "ctypes.c_char_p(b'hostile'), 0"),
    ("kexec_load", 246, "0, 0, 0, 0"),
    (
        "bpf_map_create",
        321,
        "0, ctypes.create_string_buffer(b'\\2\\0\\0\\0\\4\\0\\0\\0\\4\\0\\0\\0\\1' + bytes(115)), 128",
    ),
    ("bpf_prog_load", 321, "5, ctypes.create_string_buffer(128), 128"),
    ("perf_event_open", 298, "ctypes.create_string_buffer(b'\\1\\0\\0\\0\\x70\\0\\0\\0' + bytes(120)), 0, -1, -1, 0"),
    ("userfaultfd", 323, "0"),
    ("userfaultfd_user_mode", 323, "1"),
    ("io_uring_setup", 425, "4, ctypes.create_string_buffer(120)"),
    ("add_key", 248, "ctypes.c_char_p(b'user'), ctypes.c_char_p(b'{token}'), ctypes.c_char_p(b'x'), 1, -4"),
    ("add_key_session", 248, "ctypes.c_char_p(b'user'), ctypes.c_char_p(b'{token}'), ctypes.c_char_p(b'x'), 1, -3"),
    ("request_key", 249, "ctypes.c_char_p(b'user'), ctypes.c_char_p(b'{token}'), 0, -4"),
    ("keyctl_session", 250, "1, 0"),
    ("keyctl_user_keyring", 250, "0, -4, 1"),
    ("kcmp", 312, "os.getppid() or 1, os.getpid(), 1, 0, 0"),
    ("process_madvise", 440, "0, 0, 0, 0, 0"),
    ("fanotify_init", 300, "0, 0"),
    ("quotactl", 179, "0x80000700, 0, 0, 0"),
    ("acct", 163, "0"),
    ("syslog", 103, "3, ctypes.create_string_buffer(64), 64"),
    ("vhangup", 153, ""),
    ("settimeofday", 164, "ctypes.create_string_buffer(16), 0"),
    ("clock_settime", 227, "0, ctypes.create_string_buffer(16)"),
    ("adjtimex", 159, "ctypes.create_string_buffer(b'\\1' + bytes(255))"),
    ("nfsservctl", 180, "0, 0, 0"),
    ("lookup_dcookie", 212, "0, 0, 0"),
    ("move_pages", 279, "1, 0, 0, 0, 0, 0"),
    ("migrate_pages", 256, "1, 0, 0, 0"),
    ("uselib", 134, "ctypes.c_char_p(b'/lib/x')"),
    ("modify_ldt", 154, "0x11, ctypes.create_string_buffer(16), 16"),
    ("memfd_secret", 447, "0"),
    ("open_by_handle_at", 304, "0, ctypes.create_string_buffer(b'\\10\\0\\0\\0\\1\\0\\0\\0' + bytes(64)), 0"),
    ("io_setup_all_of_the_host", 206, "60000, ctypes.byref(ctypes.c_ulong(0))"),
    ("io_uring_register", 427, "-1, 24, 0, 0"),
    ("inotify_of_shared_folders", 254, "call(294, 0), ctypes.c_char_p(b'/usr/bin'), 0x20"),
    ("inotify_old", 253, ""),
    ("sync_of_the_host", 162, ""),
    ("syncfs_of_the_host", 306, "os.open('/usr', 0)"),
    ("statmount", 457, "ctypes.create_string_buffer(24), ctypes.create_string_buffer(512), 512, 0"),
    (
        "listmount",
        458,
        "ctypes.create_string_buffer(b'\\x18' + bytes(7) + b'\\xff' * 8 + bytes(8)), ctypes.create_string_buffer(512), 8, 0",
    ),
    ("pidfd_getfd_of_itself", 438, "call(434, os.getpid(), 0), 1, 0"),
    ("vmsplice", 278, "os.pipe()[1], 0, 0, 0"),
    ("personality_without_random_addresses", 135, "0x0040000"),
    (
        "name_to_handle",
        303,
        "-100, ctypes.c_char_p(b'/'), ctypes.create_string_buffer(b'\\x80' + bytes(140)), ctypes.byref(ctypes.c_int()), 0",
    ),
    ("clone3_new_user", 435, "ctypes.create_string_buffer((0x10000000).to_bytes(8, 'little') + bytes(80)), 88"),
]
CLONE_NEW_USER = (
    SYSCALL
    + """
pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)
if pid == 0:
    os.write(1, b"ESCAPED clone\\n")
    os._exit(0)
if pid > 0:
    os.waitpid(pid, 0)
print(pid < 0)
"""
)
# A page of our own code: the filter must see these calls like any other.
CODE = (
    X86
    + """
import ctypes, mmap, os
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
def run(code):
    page.seek(0)
    page.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    return ctypes.CFUNCTYPE(ctypes.c_long)(address)()
"""
)
NUMBER = "({}).to_bytes(4, 'little')"
INT80 = CODE + "result = run(b'\\x53\\xb8' + {number} + b'\\xbb' + {argument} + b'\\xcd\\x80\\x5b\\xc3')\n"
X32 = CODE + "result = run(b'\\xb8' + {number} + b'\\xbf' + {argument} + b'\\x0f\\x05\\xc3')\n"
TOLD = "result &= 0xffffffff\nprint('ESCAPED' if {escaped} else 'refused', result)"


def machine_code(template: str, number: int, argument: int, escaped: str) -> str:
    text = template.replace("{number}", NUMBER.format(number)).replace("{argument}", NUMBER.format(argument))
    return text + TOLD.replace("{escaped}", escaped)


NESTED = (
    SYSCALL
    + """
if call(272, 0x10000000) == 0:
    for name, text in (("setgroups", "deny"), ("uid_map", "0 1000 1"), ("gid_map", "0 1000 1")):
        try:
            open(f"/proc/self/{name}", "w").write(text)
        except OSError:
            pass
    capabilities = open("/proc/self/status").read().split("CapEff:")[1].split()[0] if os.path.exists("/proc/self/status") else "0"
    print("ESCAPED" if int(capabilities, 16) else "no capability")
print("tried")
"""
)
TOOLS = """
import subprocess
for command in (["unshare", "-Ur", "id"], ["unshare", "-m", "true"], ["mount", "-t", "tmpfs", "none", "/mnt"], ["nsenter", "-t", "1", "-m", "true"],
                ["chroot", ".", "true"], ["bwrap", "--bind", "/", "/", "true"], ["setpriv", "--reuid", "0", "true"], ["sudo", "-n", "true"]):
    try:
        if subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=5).returncode == 0:
            print("ESCAPED", command)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(type(error).__name__)
"""
LIMITS = """
import resource
for name in ("AS", "CPU", "NPROC", "NOFILE", "FSIZE", "CORE"):
    kind = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        if name not in {unlimited}:
            print("ESCAPED", name, "is unlimited")
        continue
    try:
        resource.setrlimit(kind, (hard, hard * 2 + 1))
        print("ESCAPED", name)
    except (ValueError, OSError) as error:
        print(name, error)
"""
PRIVILEGES = """
import os
status = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else ""
lines = dict(line.split(":", 1) for line in status.splitlines())
for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
    if int(lines.get(name, "0").strip(), 16):
        print("ESCAPED", name)
if lines and lines["NoNewPrivs"].strip() != "1":
    print("ESCAPED", "NoNewPrivs")
if lines and lines["Seccomp"].strip() != "2":
    print("ESCAPED", "no filter")
"""
IDENTITY = """
import os
for name, action in (("setuid", lambda: os.setuid(0)), ("setgid", lambda: os.setgid(0)), ("setgroups", lambda: os.setgroups([0])),
                     ("setreuid", lambda: os.setresuid(0, 0, 0)), ("initgroups", lambda: os.initgroups("root", 0))):
    was = os.getresuid(), os.getresgid(), os.getgroups()
    try:
        action()
    except OSError as error:
        print(name, error.errno)
        continue
    if (os.getresuid(), os.getresgid(), os.getgroups()) != was:
        print("ESCAPED", name)
"""
# Loads the call's number; `exit_group` and `kill` answer 0 and do nothing.
NO_EXIT = (
    SYSCALL
    + """
import struct
lines = [(0x20, 0, 0, 0), (0x15, 1, 0, 231), (0x15, 0, 1, 60), (0x06, 0, 0, 0x50000), (0x06, 0, 0, 0x7FFF0000)]
program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
fprog = (ctypes.c_uint64 * 2)(len(lines), ctypes.addressof(program))
libc.prctl(38, 1, 0, 0, 0)
if call(317, 1, 0, ctypes.byref(fprog)) < 0:
    raise SystemExit("no filter")
os._exit(0)
"""
)
MMAP_LOW = SYSCALL + "libc.mmap.restype = ctypes.c_void_p\nfor at in (0,):\n" + \
    "    if libc.mmap(ctypes.c_void_p(at), 4096, 7, 0x32, -1, 0) == (at or None): print('ESCAPED', at)\nprint('tried')"  # fmt: skip
OVERWRITE = (
    SYSCALL
    + """
libc.mmap.restype = ctypes.c_void_p
lines = open("/proc/self/maps").read().splitlines() if os.path.exists("/proc/self/maps") else []
for line in lines:
    if "r-xp" in line and "python" in line:
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        libc.mmap(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 7, 0x32, -1, 0)
print("lived")
"""
)
VSYSCALL = (
    CODE + "import ctypes\nprint(ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(0xffffffffff600400)(None) and 'time')"
)
LEAKS = (
    SYSCALL
    + """
key = int("{token}".removeprefix("hostile")[:7], 16)
for name, number, arguments in (("shm", 29, (key, 1 << 20, 0o1600)), ("msg", 68, (key, 0o1600)), ("sem", 64, (key, 1, 0o1600))):
    print(name, call(number, *arguments) >= 0)
"""
)
POSIX_LEAKS = """
import os
try:
    from multiprocessing import shared_memory, resource_tracker
    s = shared_memory.SharedMemory("{token}-left", create=True, size=1 << 20)
    resource_tracker.unregister(s._name, "shared_memory")
except OSError as error:
    print(error.errno)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print(libc.sem_open(b"/{token}-left", 0o100, 0o600, 1) and "semaphore")
print(libc.mq_open(b"/{token}-left", 0o102, 0o600, None) >= 0)
"""
IPC_PAIR = (
    SYSCALL
    + """
import time
key = int("{token}".removeprefix("hostile")[:7], 16) + 1
for _ in range(30):
    if call(29, key, 4096, 0) >= 0:
        print("ESCAPED")
    time.sleep(0.01)
print("tried")
"""
)
IPC_NEIGHBOUR = (
    SYSCALL
    + """
import time
key = int("{token}".removeprefix("hostile")[:7], 16) + 1
made = call(29, key, 4096, 0o1600)
time.sleep(0.6)
if made >= 0:
    call(31, made, 0, 0)
print("unharmed")
"""
)
PRCTL = (
    SYSCALL
    + """
for option in (*range(1, 80), 0x53564d41, 0x59616d61):
    if option not in (1, 15, 21, 22):
        for value in (0, 1, 2):
            libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))
status = open("/proc/self/status").read() if os.path.exists("/proc/self/status") else "CapEff: 0 x"
print("ESCAPED" if int(status.split("CapEff:")[1].split()[0], 16) else "nothing")
"""
)
ALL_CALLS = (
    SYSCALL
    + """
import signal
skip = {0, 1, 2, 3, 7, 15, 23, 24, 34, 35, 56, 57, 58, 59, 60, 61, 62, 200, 219, 231, 232, 234, 247, 270, 271, 281, 322, 435, 281, 424, 297, 129, 128, 130, 11, 10, 12, 25, 9, 13, 14, 86, 88, 202, 230, 218, 425, 426, 43, 288, 45, 47, 299, 19, 17, 295, 327, 33, 32, 292, 20, 436, 8, 441, 22, 449, 65, 69, 70, 220, 242, 243, 240, 208, 333, 416}
for number in range({first}, {last}):
    if number in skip:
        continue
    child = os.fork()
    if child == 0:
        signal.alarm(1)
        libc.syscall(ctypes.c_long(number), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
        os._exit(0)
    os.waitpid(child, 0)
print("tried")
"""
)

CASES = [
    *[
        Case(
            f"call_{name}",
            X86 + SYSCALL + f"refused({name!r}, {number}{', ' if arguments else ''}{arguments})",
            REFUSED,
        )
        for name, number, arguments in CALLS
    ],
    # Others may not run beside it on a core then, where cores have threads.
    Case(
        "core_for_itself",
        SYSCALL + "libc.prctl(62, 1, 0, 0, 0)\nprint('refused' if ctypes.get_errno() == errno.EPERM else 'ESCAPED')",
        stdout="refused\n",
    ),
    Case("own_filter_without_an_exit", X86 + NO_EXIT, TIMEOUT | KILLED, timeout_s=1, slow=True),
    Case("clone_new_user", X86 + CLONE_NEW_USER, REFUSED),
    Case("nested_user_namespace", X86 + NESTED, REFUSED | ERROR),
    Case("tools_of_the_system", TOOLS, SUCCESS | KILLED, slow=True),
    # ia32: getpid is 20, unshare 310, mount 21.
    Case("int80_getpid", machine_code(INT80, 20, 0, "result == os.getpid()"), REFUSED),
    Case("int80_unshare_user", machine_code(INT80, 310, 0x10000000, "result == 0"), REFUSED),
    Case("x32_getpid", machine_code(X32, 0x40000000 | 39, 0, "result == os.getpid()"), REFUSED),
    Case("x32_unshare_user", machine_code(X32, 0x40000000 | 272, 0x10000000, "result == 0"), REFUSED),
    Case("machine_code_unshare_user", machine_code(X32, 272, 0x10000000, "result == 0"), REFUSED),
    Case("machine_code_high_bits", X86 + SYSCALL + "refused('unshare', (1 << 32) | 272, 0x10000000)", REFUSED),
    Case("map_at_zero", MMAP_LOW, SUCCESS | KILLED),
    Case("map_over_the_interpreter", X86 + OVERWRITE, KILLED | ERROR | SUCCESS | TIMEOUT, timeout_s=3, slow=True),
    Case(
        "unmap_everything",
        SYSCALL + "libc.munmap(ctypes.c_void_p(0x1000), ctypes.c_size_t((1 << 47) - 0x2000))",
        KILLED | ERROR,
    ),
    Case("vsyscall_page", X86 + VSYSCALL, SUCCESS | KILLED),
    Case("stack_executed", CODE + "print(run(b'\\xb8\\x2a\\0\\0\\0\\xc3'))", SUCCESS | KILLED | ERROR),
    Case("limits_raised", LIMITS.replace("{unlimited}", "('NPROC',)")),
    Case("privileges", PRIVILEGES),
    Case("identity", IDENTITY),
    Case("prctl_all_options", PRCTL, SUCCESS | KILLED | ERROR),
    Case(
        "all_calls_with_zeros_0_120",
        ALL_CALLS.replace("{first}", "0").replace("{last}", "120"),
        SUCCESS | KILLED | TIMEOUT,
        slow=True,
    ),
    Case(
        "all_calls_with_zeros_120_260",
        ALL_CALLS.replace("{first}", "120").replace("{last}", "260"),
        SUCCESS | KILLED | TIMEOUT,
        slow=True,
    ),
    Case(
        "all_calls_with_zeros_260_470",
        ALL_CALLS.replace("{first}", "260").replace("{last}", "470"),
        SUCCESS | KILLED | TIMEOUT,
        slow=True,
    ),
    Case(
        "clock_change",
        "import time\nfor c in (time.CLOCK_REALTIME, time.CLOCK_MONOTONIC):\n    try:\n        time.clock_settime(c, 0)\n        print('ESCAPED')\n    except OSError as e: print(e.errno)",
        REFUSED,
    ),
    Case(
        "host_name_change",
        "import socket\ntry:\n    socket.sethostname('hostile')\n    print('ESCAPED')\nexcept OSError as e: print(e.errno)",
        REFUSED,
    ),
    Case("sysv_leaks", X86 + LEAKS, REFUSED, open_at=BELOW_NAMESPACES),
    Case("posix_leaks", POSIX_LEAKS, SUCCESS | KILLED | ERROR, open_at=PROCESS_ONLY),
    Case(
        "sysv_between_runs", X86 + IPC_PAIR, REFUSED, neighbour=X86 + IPC_NEIGHBOUR, slow=True, open_at=BELOW_NAMESPACES
    ),
    Case(
        "seccomp_replaced",
        X86
        + SYSCALL
        + "libc.prctl(38, 1, 0, 0, 0)\nprogram = ctypes.create_string_buffer(b'\\6\\0\\0\\0\\0\\0\\xff\\x7f')\n"
        "fprog = (ctypes.c_uint64 * 2)(1, ctypes.addressof(program))\ncall(317, 1, 0, ctypes.byref(fprog))\nrefused('unshare', 272, 0x10000000)",
        REFUSED,
    ),
    Case(
        "landlock_undone",
        X86
        + SYSCALL
        + "rule = ctypes.create_string_buffer(24)\nfd = call(444, rule, 8, 0)\nif fd >= 0: call(446, fd, 0)\n"
        "try: print('ESCAPED', open('{secret}').read())\nexcept OSError as e: print(e.errno)",
        REFUSED,
        open_at=PROCESS_ONLY,
    ),
]
