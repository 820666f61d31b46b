"""Programs that want all of the machine: processes, memory, disk, inodes, descriptors, output."""

from tests.support.hostile.hostile_case import (
    BELOW_NAMESPACES,
    ERROR,
    KILLED,
    MEMORY,
    OUTPUT,
    SUCCESS,
    TIMEOUT,
    Case,
    timed_out,
)

ANY_STOP = KILLED | TIMEOUT | MEMORY | ERROR
PRIVATE_DISK = {
    level: "without a mount namespace a run's folder is on the host's disk; only the size of each file is limited"
    for level in ("process", "landlock")
}
# Each of these must end by a limit; nobody is told which one came first.
FORKS = {
    "fork_bomb": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "fork_bomb_that_sleeps": "import os, time\nwhile True:\n    try:\n        if os.fork() == 0:\n            time.sleep(99)\n"
    "    except OSError:\n        time.sleep(0.01)",
    "fork_bomb_of_daemons": "import os\nwhile True:\n    try:\n        if os.fork() == 0:\n            os.setsid()\n"
    "    except OSError:\n        pass",
    "fork_bomb_that_ignores_signals": "import os, signal\nfor n in range(1, 65):\n    try:\n"
    "        signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError):\n        pass\nwhile True:\n    try:\n"
    "        os.fork()\n    except OSError:\n        pass",
    "vfork_bomb_of_shells": "import subprocess\nkept = []\nwhile True:\n    try:\n"
    "        kept.append(subprocess.Popen(['sleep', '99']))\n    except OSError:\n        pass",
    "shell_fork_bomb": "import subprocess\nsubprocess.run(['sh', '-c', ':(){ :|:& };:; sleep 99'])\nimport time\ntime.sleep(99)",
    "thread_bomb": "import threading, time\nwhile True:\n    try:\n"
    "        threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError:\n        time.sleep(0.01)",
    "pool_bomb": "from multiprocessing import Pool\npools = []\nwhile True:\n    pools.append(Pool(8))",
}
MEMORY_BOMBS = {
    "one_large_array": "x = bytearray(1 << 40)",
    "growing_list": "x = []\nwhile True:\n    x.append('a' * 10**6)",
    "doubling_string": "x = 'ab'\nwhile True:\n    x += x",
    "growing_dict": "x = {}\ni = 0\nwhile True:\n    i += 1\n    x[i] = [i] * 1000",
    "numpy_ones": "import numpy\nx = numpy.ones(10**9)",
    "numpy_outer": "import numpy\nx = numpy.outer(range(10**5), range(10**5))",
    "huge_int": "x = 1 << (1 << 34)",
    "huge_tuple": "x = (0,) * (1 << 34)",
    "many_small_objects": "x = []\nwhile True:\n    x.append(object())",
}
MMAP_PAGES = """
import mmap
kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 24, {flags}))
    for page in range(0, 1 << 24, 4096):
        kept[-1][page] = 1
"""
SHARED_BY_MANY = """
import os, time
reader, writer = os.pipe()
for _ in range(16):
    if os.fork() == 0:
        try:
            x = bytearray(200 << 20)
            for page in range(0, len(x), 4096):
                x[page] = 1
            os.write(writer, b"x")
        finally:
            time.sleep(99)
held = 0
while held < 16:
    held += len(os.read(reader, 16))
    if held * 200 > 4 * 256:
        print("ESCAPED", held, "processes hold 200 MB each")
        break
"""
SYSV = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
held = 0
for _ in range(40):
    segment = libc.shmget(0, 32 << 20, 0o1600)
    address = libc.shmat(segment, None, 0) if segment >= 0 else None
    if address is None or address == 2**64 - 1:
        break
    ctypes.memset(address, 1, 32 << 20)
    libc.shmdt(ctypes.c_void_p(address))
    held += 32
print("ESCAPED" if held > 4 * 256 else "stopped", held)
for segment in range(100):
    libc.shmctl(segment, 0, None)
"""
FILL = """
import os
written = 0
try:
    for number in range(64):
        with open(f"{where}/{token}{number}", "wb") as file:
            for _ in range(64):
                written += file.write(bytes(1 << 20))
                file.flush()
                if written > 300 << 20:
                    raise OSError("enough")
except OSError as error:
    print("stopped", error.errno)
if written > 300 << 20:
    print("ESCAPED", written)
"""
ONE_FILE = """
import os, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    with open("large", "wb") as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
            file.flush()
    print("ESCAPED")
except OSError as error:
    print("stopped", error.errno)
"""
INODES = """
made = 0
try:
    for made in range(60_000):
        open(f"f{made}", "x").close()
    print("ESCAPED", made)
except OSError as error:
    print("stopped", error.errno)
"""
DESCRIPTORS = """
import os, {module}
kept = []
try:
    while len(kept) < 20_000:
        kept.append({make})
    print("ESCAPED")
except OSError as error:
    print("stopped", error.errno)
"""
MEMFD = """
import os
kept = []
try:
    for _ in range(40):
        fd = os.memfd_create("m")
        os.ftruncate(fd, 32 << 20)
        os.write(fd, bytes(32 << 20))
        kept.append(fd)
    print("ESCAPED")
except (OSError, MemoryError) as error:
    print("stopped")
"""
IN_FLIGHT = {
    level: "the kernel counts descriptors in flight for a user, and all runs are one user's: other programs cannot send any"
    for level in ("process", "landlock", "namespaces")
}
# Counted for a user, whose processes all runs and the server are: what one run takes may not be missing in another.
OF_A_USER = """
import os, socket, time
for _ in range(20):
    if os.fork() == 0:
        break
kept, end = [], time.monotonic() + 2.0
while time.monotonic() < end:
    try:
        {take}
    except OSError:
        time.sleep(0.01)
"""
TAKES = {
    "descriptors_in_flight": "kept.append(socket.socketpair()); [socket.send_fds(kept[-1][0], [b'x'], [0] * 250) for _ in range(9)]",
    "pipes": "kept.append(os.pipe()); os.set_blocking(kept[-1][1], False); os.write(kept[-1][1], bytes(1 << 16))",
    "pending_signals": "import signal; signal.pthread_sigmask(0, [35]); [signal.raise_signal(35) for _ in range(2000)]; time.sleep(9)",
    "epolls": "import select; kept.append(select.epoll()); [kept[-1].register(fd) for fd in os.pipe()]",
    "unix_sockets": "kept.append(socket.socketpair()); kept[-1][0].setblocking(False); kept[-1][0].send(bytes(1 << 17))",
    "locks": "import fcntl; kept.append(os.open('/usr/bin/env', 0)); fcntl.flock(kept[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)",
}
NEEDS = """
import os, select, signal, socket, subprocess
a, b = socket.socketpair()
socket.send_fds(a, [b"x"], [0, 1, 2])
assert len(socket.recv_fds(b, 1, 3)[1]) == 3
pipe = os.pipe()
os.set_blocking(pipe[1], False)
assert os.write(pipe[1], bytes(4096)) == 4096
signal.pthread_sigmask(0, [35])
signal.raise_signal(35)
assert signal.sigtimedwait([35], 1)
select.epoll().register(pipe[0])
assert subprocess.run(["/usr/bin/env", "true"]).returncode == 0
print("unharmed")
"""
SPARSE = """
import os
with open("sparse", "wb") as file:
    try:
        os.posix_fallocate(file.fileno(), 0, 1 << 34)
        print("ESCAPED")
    except OSError as error:
        print("stopped", error.errno)
"""


def is_cut(result) -> str | None:
    """The reply is small and no character in it was split."""
    if len(result.stdout.encode()) + len(result.stderr.encode()) > 20_000:
        return f"{len(result.stdout.encode())} bytes of output came back"
    return "a character was split" if "\ufffd" in result.stdout and "é" in result.stdout else None


FLOODS = {
    "flood_lines": "while True: print('x' * 1000)",
    "flood_without_newline": "import sys\nwhile True: sys.stdout.write('x' * 1000)",
    "flood_stderr": "import sys\nwhile True: sys.stderr.write('x' * 1000 + '\\n')",
    "flood_raw_descriptor": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "flood_invalid_utf8": "import os\nwhile True: os.write(1, b'\\xff\\xfe\\x80' * 20000)",
    "flood_zero_bytes": "import os\nwhile True: os.write(1, bytes(65536))",
    "flood_both": "import os\nwhile True:\n    os.write(1, b'x' * 4096)\n    os.write(2, b'y' * 4096)",
    "flood_from_child": "import os\nos.fork()\nwhile True: os.write(1, b'x' * 65536)",
    "flood_of_yes": "import subprocess\nsubprocess.run(['yes'])",
}
LONG = {
    "long_two_byte_characters": "print('é' * 50_000)",
    "long_odd_two_byte_characters": "print('x' + 'é' * 50_000)",
    "long_four_byte_characters": "print('\\U0001d465' * 30_000)",
    "long_stderr": "import sys\nprint('x' * 50_000, file=sys.stderr)",
    "long_value": "'é' * 100_000",
}

# Its first process ends by itself with code 0, which is a success; what it leaves must end with it.
FORK_CHAIN = "import os\nwhile True:\n    try:\n        if os.fork():\n            os._exit(0)\n    except OSError:\n        pass"
CASES = [
    timed_out("fork_chain", FORK_CHAIN, statuses=SUCCESS | ANY_STOP),
    *[timed_out(name, source, statuses=ANY_STOP) for name, source in FORKS.items()],
    # On a busy machine the clock may come first.
    *[Case(f"memory_{name}", source, MEMORY | TIMEOUT, slow=True) for name, source in MEMORY_BOMBS.items()],
    Case("memory_mmap_private", MMAP_PAGES.replace("{flags}", "mmap.MAP_PRIVATE"), MEMORY | ERROR | KILLED, slow=True),
    Case("memory_mmap_shared", MMAP_PAGES.replace("{flags}", "mmap.MAP_SHARED"), MEMORY | ERROR | KILLED, slow=True),
    Case("memory_of_16_processes", SHARED_BY_MANY, SUCCESS | ANY_STOP, slow=True, timeout_s=5),
    Case("memory_in_sysv_segments", SYSV, SUCCESS | ANY_STOP, slow=True),
    Case(
        "memory_error_caught",
        "try:\n    bytearray(1 << 40)\nexcept MemoryError:\n    print('caught')",
        stdout="caught\n",
    ),
    Case("memory_in_memfds", MEMFD, SUCCESS | MEMORY | KILLED, slow=True),
    Case("disk_fill_here", FILL.replace("{where}", "."), SUCCESS | KILLED, slow=True, open_at=PRIVATE_DISK),
    Case("disk_fill_shm", FILL.replace("{where}", "/dev/shm"), SUCCESS | KILLED, slow=True, open_at=PRIVATE_DISK),
    Case("disk_one_large_file", ONE_FILE, SUCCESS | KILLED),
    Case("disk_default_sigxfsz", "open('large', 'wb').write(bytes(200 << 20))", ERROR | KILLED),
    Case("disk_fallocate", SPARSE, SUCCESS | KILLED),
    *[
        Case(
            f"of_a_user_{name}",
            OF_A_USER.replace("{take}", take),
            SUCCESS | ANY_STOP,
            slow=True,
            timeout_s=4,
            neighbour=NEEDS,
            late=True,
            open_at={"descriptors_in_flight": IN_FLIGHT, "pending_signals": BELOW_NAMESPACES}.get(name, {}),
        )
        for name, take in TAKES.items()
    ],
    Case(
        "descriptors_in_flight_of_the_sandbox",
        OF_A_USER.replace("{take}", TAKES["descriptors_in_flight"]),
        SUCCESS | ANY_STOP,
        slow=True,
        timeout_s=4,
        neighbour="print('unharmed')",
        late=True,
    ),
    Case(
        "fork_bomb_of_a_session",
        FORKS["fork_bomb"],
        ANY_STOP,
        slow=True,
        timeout_s=1.5,
        session=True,
        neighbour=NEEDS,
        late=True,
    ),
    Case("inode_fill", INODES, SUCCESS | KILLED, slow=True, open_at=PRIVATE_DISK),
    Case(
        "directory_depth",
        "import os\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nprint('deep')",
        SUCCESS | ERROR,
    ),
    Case("descriptors_open", DESCRIPTORS.replace("{module}", "io").replace("{make}", "os.open('/dev/null', 0)")),
    Case("descriptors_pipe", DESCRIPTORS.replace("{module}", "io").replace("{make}", "os.pipe()")),
    Case("descriptors_socketpair", DESCRIPTORS.replace("{module}", "socket").replace("{make}", "socket.socketpair()")),
    Case("descriptors_memfd", DESCRIPTORS.replace("{module}", "io").replace("{make}", "os.memfd_create('m')")),
    *[Case(name, source, OUTPUT, check=is_cut, slow=True) for name, source in FLOODS.items()],
    *[Case(name, source, OUTPUT, check=is_cut) for name, source in LONG.items()],
]
