"""Programs that want files which are not theirs, or want to leave some behind."""

from tests.support.hostile.hostile_case import (
    BELOW_NAMESPACES,
    ERROR,
    KILLED,
    PROCESS_ONLY,
    SUCCESS,
    SYSCALL,
    Case,
    attempts,
)

METADATA = PROCESS_ONLY | {
    "landlock": "Landlock forbids opening a file, not asking for or (by its owner) changing its mode, times and attributes"
}
SHARED_TMP = PROCESS_ONLY
HOST_FILES = ("/etc/shadow", "/etc/ssh/sshd_config", "/etc/fstab", "/etc/hostname", "/etc/resolv.conf",
              "/etc/slurm/slurm.conf", "/etc/munge/munge.key", "/var/log/dpkg.log", "/root/.bashrc", "/proc/1/environ",
              "/sys/kernel/mm/transparent_hugepage/enabled", "/boot", "/run/utmp", "/var/lib/dpkg/status")  # fmt: skip
HOMES = (
    "/root",
    "/home",
    "/work",
    "/mnt",
    "/srv",
    "/opt",
    "/scratch",
    "/data",
    "/media",
    "/var",
    "/run",
    "/sys",
    "/boot",
    "/etc/ssh",
)
KEYS = """
import os, pwd
homes = {os.path.expanduser("~"), "/root", *(entry.pw_dir for entry in pwd.getpwall())}
for home in sorted(homes):
    for name in (".ssh", ".netrc", ".aws/credentials", ".cache/huggingface/token", ".config", ".bash_history", ".gitconfig"):
        try:
            path = os.path.join(home, name)
            found = os.listdir(path) if os.path.isdir(path) else open(path).read()
        except OSError:
            continue
        print("ESCAPED", path)
print("looked")
"""
# An interpreter may be installed in a home; then the folders above it are there, empty but for the next one.
WALK = """
import os, sys
above = (sys.prefix + "/", sys.base_prefix + "/", *(path + "/" for path in sys.path))
def names(top):
    return [n for n in os.listdir(top) if not any(path.startswith(os.path.join(top, n) + "/") for path in above)]
for top in {tops}:
    try:
        found = names(top)
    except OSError as error:
        print(top, error.errno)
        continue
    if found:
        print("ESCAPED", top, len(found))
"""
# Only the folders that an interpreter or a shell needs may be read.
CANARY = """
import os
seen = []
for top, folders, files in os.walk("/", onerror=None):
    folders[:] = [f for f in folders if os.path.join(top, f) not in ("/proc", "/usr", "/lib", "/lib64", "/sys")]
    if os.path.join("{folder}") in top or "secret" in files and "hostile" in top:
        seen.append(top)
print(*(["ESCAPED", *seen] if seen else ["nothing"]))
"""
ENVIRONMENT = """
import os, sys
allowed = {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "MPLBACKEND", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE",
           "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "LD_LIBRARY_PATH", "TZ",
           "PYTHONSAFEPATH", "PYTHONNOUSERSITE", "MALLOC_ARENA_MAX", "MPLCONFIGDIR", "USER", "LOGNAME", "KMP_INIT_AT_FORK"}
raw = open("/proc/self/environ", "rb").read() if os.path.exists("/proc/self/environ") else b""
names = set(os.environ) | {part.split(b"=")[0].decode() for part in raw.split(b"\\0") if part}
strange = sorted(names - allowed)
print(*(["ESCAPED", *strange] if strange else ["clean"]))
print("ESCAPED" if "{token}" in str(os.environ) + str(raw) + str(sys.argv) else "clean")
"""
WRITES = """
import os, sys, sysconfig
places = ["/", "/usr", "/usr/lib", "/usr/local", "/etc", "/bin", "/lib", "/dev", "/proc", "/var/tmp", "/run", "/home", "/root", "/work",
          "{checkout}", "{folder}", os.path.dirname(os.__file__), sysconfig.get_paths()["purelib"], sys.prefix]
for place in places:
    path = os.path.join(place, "{token}-file")
    try:
        open(path, "w").close()
    except OSError as error:
        continue
    # What lies below the run's own /tmp is its own, even where the host has something of that name there.
    if os.stat(path).st_dev != os.stat(".").st_dev:
        print("ESCAPED", place)
    try:
        os.unlink(path)
    except OSError:
        pass
"""
CHANGES = ("os.unlink('{secret}')", "os.rename('{secret}', '{secret}.old')", "open('{secret}', 'w')", "os.truncate('{secret}', 0)",
           "os.chmod('{secret}', 0o777)", "os.utime('{secret}', (0, 0))", "os.setxattr('{secret}', 'user.x', b'1')",
           "os.rmdir('{folder}')", "os.mkdir('{folder}/made')", "os.symlink('/', '{folder}/linked')")  # fmt: skip
LINKS = {
    "symlink": "os.symlink('{secret}', 'link')\nprint(attempt_read('link'))",
    "symlink_to_root": "os.symlink('/', 'link')\nprint(attempt_read('link/{secret}'))",
    "symlink_chain": "os.symlink('b', 'a')\nos.symlink('{secret}', 'b')\nprint(attempt_read('a'))",
    "proc_root": "print(attempt_read('/proc/self/root/{secret}'))",
    "proc_cwd": "print(attempt_read('/proc/self/cwd/' + '../' * 20 + '{secret}'))",
    "proc_parent_root": "print(attempt_read(f'/proc/{os.getppid()}/root/{secret}'))",
    "proc_one_root": "print(attempt_read('/proc/1/root/{secret}'))",
    "dots": "print(attempt_read('../' * 30 + '{secret}'))",
    "dev_fd": "for n in range(64): print(attempt_read(f'/dev/fd/{n}/{secret}'), attempt_read(f'/proc/self/fd/{n}/../{secret}'))",
    "old_root": "for n in range(64):\n    try: os.fchdir(n)\n    except OSError: continue\n    print(attempt_read('{secret}'[1:]), attempt_read('../' * 9 + '{secret}'))",
}
READ = """
import os
def attempt_read(path):
    try:
        return "ESCAPED " + open(path).read() if "the secret" in open(path).read() else "other"
    except OSError as error:
        return error.errno
"""
HARDLINK = (
    READ
    + "try:\n    os.link('{secret}', 'hard')\n    print(attempt_read('hard'))\nexcept OSError as error:\n    print(error.errno)"
)
OPENAT2 = (
    SYSCALL
    + """
how = (ctypes.c_uint64 * 3)(0, 0, 0)
refused("openat2", 437, -100, ctypes.c_char_p(b"{secret}"), how, 24)
refused("open", 2, ctypes.c_char_p(b"{secret}"), 0, 0)
refused("creat", 85, ctypes.c_char_p(b"{folder}/made"), 0o600)
"""
)
HANDLE = (
    SYSCALL
    + """
handle = ctypes.create_string_buffer(bytes([12, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) + bytes(128))
for fd in range(-100, 16):
    if call(304, fd, handle, 0) >= 0:
        print("ESCAPED", fd)
print("tried")
"""
)
LITTER = """
import os
for name in ("a b", "-rf", "new\\nline", "\\udcff", ".hidden", "x" * 250):
    open(name, "w").close()
os.makedirs("d/" * 60)
os.symlink("{folder}", "to_world")
os.symlink("loop", "loop")
os.mkdir("closed")
open("closed/file", "w").close()
os.chmod("closed", 0)
os.mkfifo("fifo")
open("read_only", "w").close()
os.chmod("read_only", 0)
os.chmod(".", 0)
print("left")
"""
DEVICES = "import os, stat"
CASES = [
    attempts("host_files", "", *[f"open('{path}').read()" for path in HOST_FILES], open_at=PROCESS_ONLY),
    attempts(
        "secret_read",
        "import os",
        "open('{secret}').read()",
        "os.listdir('{folder}')",
        "open('{secret}', 'rb', buffering=0)",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "secret_seen", "import os", "os.stat('{secret}')", "os.readlink('{folder}/../{folder}')", open_at=METADATA
    ),
    attempts(
        "checkout_read",
        "import os",
        "open('{checkout}/.git/HEAD').read()",
        "os.listdir('{checkout}/configs')",
        "os.listdir('{checkout}/.git')",
        open_at=PROCESS_ONLY,
    ),
    Case("home_keys", KEYS, open_at=PROCESS_ONLY),
    Case("shared_mounts", WALK.replace("{tops}", repr(HOMES)), open_at=PROCESS_ONLY),
    Case("walk_to_the_secret", CANARY, SUCCESS, open_at=METADATA, slow=True),
    Case("environment", ENVIRONMENT),
    Case("write_everywhere", WRITES, open_at=PROCESS_ONLY),
    attempts("secret_changed", "import os", *CHANGES, open_at=METADATA),
    attempts(
        "subprocess_reads_secret",
        "import subprocess",
        "subprocess.run(['cat', '{secret}'], check=True)",
        "subprocess.run('echo x > {folder}/made', shell=True, check=True)",
        open_at=PROCESS_ONLY,
    ),
    *[Case(f"link_{name}", READ + source, SUCCESS, open_at=PROCESS_ONLY) for name, source in LINKS.items()],
    Case("link_hard", HARDLINK, open_at=PROCESS_ONLY),
    Case("open_by_number", OPENAT2, SUCCESS | KILLED, open_at=PROCESS_ONLY),
    Case("open_by_handle", HANDLE, SUCCESS | KILLED),
    Case("litter", LITTER, stdout="left\n"),
    Case(
        "left_in_tmp",
        "import os\nfor d in ('/tmp', '/var/tmp', '/dev/shm'):\n    try: open(f'{d}/{token}-left', 'w').close()\n    except OSError: pass\nprint('left')",
        stdout="left\n",
        open_at=SHARED_TMP,
    ),
    Case(
        "left_open_and_unlinked",
        "import os\nf = open('x', 'wb')\nf.write(bytes(1 << 20))\nos.unlink('x')\nprint('left')",
        stdout="left\n",
    ),
    Case("folder_removed", "import os, shutil\nshutil.rmtree(os.getcwd())\nprint('left')", SUCCESS | ERROR),
    Case(
        "folder_replaced",
        "import os\nd = os.getcwd()\nos.chdir('/')\nos.rmdir(d)\nos.symlink('{folder}', d)\nprint('left')",
        SUCCESS | ERROR,
        open_at=PROCESS_ONLY,
    ),
    Case(
        "folder_renamed",
        "import os\nd = os.getcwd()\nos.rename(d, d + '-{token}')\nprint('left')",
        SUCCESS | ERROR,
        open_at=PROCESS_ONLY,
    ),
    Case(
        "other_runs_folders",
        "import os\nhere = os.path.realpath(os.getcwd())\nup = os.path.dirname(here)\n"
        "others = [n for n in os.listdir(up) if n != os.path.basename(here) and os.path.exists(f'{up}/{n}/mine')]\n"
        "print(*(['ESCAPED', *others] if others else ['alone']))",
        SUCCESS | ERROR,
        neighbour="import time\nopen('mine', 'w').close()\ntime.sleep(0.6)\nprint('unharmed')",
        slow=True,
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "device_nodes",
        DEVICES,
        "os.mknod('disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))",
        "os.mknod('mem', 0o600 | stat.S_IFCHR, os.makedev(1, 1))",
        "os.mknod('/dev/shm/{token}', 0o600 | stat.S_IFCHR, os.makedev(1, 5))",
    ),
    attempts(
        "devices_of_the_host",
        "",
        *[
            f"open('/dev/{name}', 'rb')"
            for name in (
                "mem",
                "kmsg",
                "sda",
                "vda",
                "nvme0n1",
                "kvm",
                "fuse",
                "net/tun",
                "nvidia0",
                "nvidiactl",
                "nvidia-uvm",
                "dri/card0",
                "infiniband/uverbs0",
                "tty",
                "console",
                "ptmx",
                "loop-control",
                "cpu_dma_latency",
                "snd/timer",
            )
        ],
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "kernel_settings",
        "",
        *[
            f"open('/proc/{name}', 'w')"
            for name in (
                "sys/kernel/core_pattern",
                "sys/kernel/hostname",
                "sys/vm/drop_caches",
                "sysrq-trigger",
                "sys/kernel/modprobe",
                "sys/fs/binfmt_misc/register",
                "irq/default_smp_affinity",
                "sys/kernel/randomize_va_space",
            )
        ],
        open_at={
            "process": "root's user may open sysctl files without any capability",
        },
    ),
    attempts(
        "kernel_secrets",
        "",
        "open('/proc/kcore', 'rb').read(64)",
        "open('/proc/kmsg', 'rb')",
        "open('/proc/vmcore', 'rb')",
        "open('/sys/firmware/efi/vars')",
        "open('/proc/1/mem', 'rb').read(1)",
        "open('/proc/keys').read(1)[0]",
        open_at=PROCESS_ONLY | {"namespaces": "/proc/keys lists only keys that the run may see"},
    ),
    attempts(
        "cgroup_files",
        "import os",
        "(os.mkdir('/sys/fs/cgroup/{token}'), os.rmdir('/sys/fs/cgroup/{token}'))",
        "open('/sys/fs/cgroup/cgroup.procs', 'w')",
        open_at=PROCESS_ONLY,
    ),
    Case(
        "setuid_file",
        "import os\nopen('s', 'w').close()\nos.chmod('s', 0o6755)\nprint('made')",
        SUCCESS | KILLED | ERROR,
    ),
    Case(
        "setuid_program",
        "import subprocess\nr = subprocess.run(['su', '-c', 'id -u'], capture_output=True, stdin=subprocess.DEVNULL, timeout=5)\n"
        "caps = open('/proc/self/status').read().split('CapEff:')[1].split()[0] if __import__('os').path.exists('/proc/self/status') else '0'\n"
        "print('ESCAPED' if int(caps, 16) else 'none')",
        SUCCESS | ERROR,
    ),
    Case(
        "tmp_is_not_shared_between_runs",
        "import os, time\nfor _ in range(30):\n    for d in ('/tmp', '/dev/shm'):\n        if os.path.exists(f'{d}/{token}-n'): print('ESCAPED', d)\n"
        "    time.sleep(0.01)",
        neighbour="import os, time\nfor d in ('/tmp', '/dev/shm'):\n    try: open(f'{d}/{token}-n', 'w').close()\n    except OSError: pass\n"
        "time.sleep(0.6)\nfor d in ('/tmp', '/dev/shm'):\n    try: os.unlink(f'{d}/{token}-n')\n    except OSError: pass\nprint('unharmed')",
        slow=True,
        open_at=BELOW_NAMESPACES,
    ),
]
