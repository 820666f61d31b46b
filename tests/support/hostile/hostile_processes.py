"""Programs that want to outlive their run, or reach the processes beside them."""

from tests.support.hostile.hostile_case import ATTEMPT, ERROR, KILLED, SUCCESS, SYSCALL, TIMEOUT, Case, attempts

OTHERS = {"process": "processes of one user may signal, trace and read each other"}
READ_OTHERS = OTHERS | {"landlock": "Landlock hides no entries of /proc; it only forbids tracing and signals"}
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    {again}
    {then}
time.sleep(0.05)
print("left")
"""
STAY = "time.sleep(600)"
AGAIN = "os.fork() and os._exit(0)"
CLOSE = "os.closerange(0, 256); time.sleep(600)"
BUSY = "\n    while True: pass"
RESPAWN = """
import os, signal, time
def watch(pid):
    while True:
        if os.fork() == 0:
            os.setsid()
            for n in (1, 2, 3, 15):
                signal.signal(n, signal.SIG_IGN)
            time.sleep(0.02)
            os._exit(0)
        try:
            os.wait()
        except OSError:
            pass
if os.fork() == 0:
    os.setsid()
    watch(os.getppid())
time.sleep(0.05)
print("left")
"""
# Runs beside the case for long enough that every attempt of it falls into this run's life.
CALM = "import time\nfor _ in range(60):\n    time.sleep(0.01)\nprint('unharmed')"
LISTED = """
import os
found = []
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            text = open(f"/proc/{name}/{what}", "rb").read()
        except OSError:
            continue
        if {test}:
            found.append(name)
print(*(["ESCAPED", *found[:5]] if found else ["nobody"]))
"""
KILL_ALL = """
import os, signal
for number in ({numbers}):
    try:
        os.kill({pid}, number)
    except OSError as error:
        print(error.errno)
print("tried")
"""
TRACE = (
    SYSCALL
    + """
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (os.getpid(), 1):
        refused("attach", {number}, {arguments})
"""
)
READ_MEMORY = (
    SYSCALL
    + """
buffer = ctypes.create_string_buffer(64)
local = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 64)
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        for line in open(f"/proc/{name}/maps").read().splitlines()[:3] if os.access(f"/proc/{name}/maps", os.R_OK) else []:
            remote = (ctypes.c_void_p * 2)(int(line.split("-")[0], 16), 64)
            refused("read", {number}, int(name), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
"""
)
# Thirteen processes are lowered as one that runs for long is, and further; none of them gets out of that.
REGAIN = """
import os, time
was, children = os.getpriority(os.PRIO_PROCESS, 0), []
for _ in range(12):
    children.append(os.fork())
    if children[-1] == 0:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass
        os._exit(0)
time.sleep(0.8)
child = children[0]
def weight():
    return os.getpriority(os.PRIO_PROCESS, child)
low = weight()
for action in (lambda: os.setpriority(os.PRIO_PROCESS, child, low - 1), lambda: os.setpriority(os.PRIO_PGRP, 0, was),
               lambda: os.sched_setscheduler(child, os.SCHED_BATCH, os.sched_param(0)), lambda: os.sched_setscheduler(child, os.SCHED_OTHER, os.sched_param(0))):
    try:
        action()
    except OSError:
        pass
print("kept" if low > was and weight() >= low else "ESCAPED", was, low, weight())
"""
NUMBERS = "1, 2, 3, 10, 12, 15, 9"


def killing(pid: str, numbers: str = NUMBERS) -> str:
    return KILL_ALL.replace("{numbers}", numbers).replace("{pid}", pid)


def daemon(then: str, again: str = "pass") -> str:
    return DAEMON.replace("{then}", then).replace("{again}", again)


def listed(what: str, test: str) -> str:
    return LISTED.replace("{what}", what).replace("{test}", test)


LEFT = {"stdout": "left\n"}
# Whoever kills everything he sees may well be among the dead.
ANY = SUCCESS | KILLED | ERROR

CASES = [
    Case("daemon_setsid", daemon(STAY), **LEFT),
    Case("daemon_double_fork", daemon(STAY, AGAIN), **LEFT),
    Case("daemon_triple_fork", daemon(STAY, f"{AGAIN}; os.setsid(); {AGAIN}"), **LEFT),
    Case("daemon_without_descriptors", daemon(CLOSE, AGAIN), **LEFT),
    Case("daemon_that_is_busy", daemon(BUSY, AGAIN), **LEFT),
    Case("daemon_without_environment", daemon("os.execve('/bin/sleep', ['sleep', '600'], {})", AGAIN), **LEFT),
    Case(
        "daemon_of_a_shell",
        "import subprocess\nsubprocess.run('setsid sleep 600 > /dev/null 2>&1 &', shell=True)\nprint('left')",
        **LEFT,
    ),
    Case(
        "daemon_nohup",
        "import subprocess\nsubprocess.run('nohup sleep 600 > /dev/null 2>&1 &', shell=True)\nprint('left')",
        **LEFT,
    ),
    Case("daemon_that_respawns", RESPAWN, **LEFT),
    Case(
        "daemon_process_group",
        "import os, time\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    time.sleep(600)\nprint('left')",
        **LEFT,
    ),
    Case("daemon_as_subreaper", SYSCALL + "libc.prctl(36, 1)\nlibc.prctl(1, 0)\n" + daemon(STAY, AGAIN), **LEFT),
    Case("daemon_stopped", daemon("os.kill(os.getpid(), 19)", AGAIN), **LEFT),
    Case(
        "zombies", "import os\nfor _ in range(20):\n    if os.fork() == 0:\n        os._exit(0)\nprint('left')", **LEFT
    ),
    Case(
        "vfork_and_exec",
        "import os\nos.posix_spawn('/bin/sleep', ['sleep', '600'], {}, setsid=True)\nprint('left')",
        **LEFT,
    ),
    Case(
        "multiprocessing_left",
        "import multiprocessing as m, time\nm.Process(target=time.sleep, args=(600,), daemon=True).start()\nprint('left')",
        **LEFT,
    ),
    Case(
        "fork_server_left",
        "from multiprocessing import forkserver\nforkserver.ensure_running()\nprint('left')",
        SUCCESS | ERROR,
    ),
    Case("daemon_while_parent_is_killed", daemon(STAY, AGAIN) + "import os\nos.kill(os.getpid(), 9)", KILLED),
    Case(
        "daemon_while_parent_times_out",
        daemon(STAY, AGAIN) + "import time\ntime.sleep(600)",
        TIMEOUT,
        timeout_s=0.5,
        slow=True,
    ),
    Case(
        "clone_parent",
        SYSCALL
        + "r = call(56, 0x8000 | 17, 0, 0, 0, 0)\nif r == 0:\n    import time\n    time.sleep(600)\nprint('left')",
        SUCCESS | KILLED,
    ),
    Case(
        "kill_all",
        killing("-1"),
        ANY | TIMEOUT,
        timeout_s=5,
        open_at=OTHERS,
        slow=True,
        neighbour=CALM,
        strikes_all=True,
    ),
    Case(
        "kill_all_stop",
        killing("-1", "19"),
        ANY | TIMEOUT,
        timeout_s=1,
        open_at=OTHERS,
        slow=True,
        neighbour=CALM,
        strikes_all=True,
    ),
    Case("kill_process_1", killing("1"), ANY, strikes_all=True),
    Case("kill_parent", killing("os.getppid()"), ANY, open_at=OTHERS, strikes_all=True),
    Case(
        "kill_parent_stop",
        killing("os.getppid()", "19, 20"),
        ANY | TIMEOUT,
        timeout_s=2,
        open_at=OTHERS,
        slow=True,
        strikes_all=True,
    ),
    Case("kill_server", killing("{server}"), ANY, open_at=OTHERS),
    Case("kill_victim", killing("{victim}"), ANY, open_at=OTHERS),
    Case("kill_own_group", killing("0", "1, 2, 15, 9"), ANY, neighbour=CALM, slow=True, strikes_all=True),
    Case(
        "kill_group_of_parent",
        killing("-os.getpgid(os.getppid())", "15, 9"),
        ANY,
        open_at=OTHERS,
        neighbour=CALM,
        slow=True,
        strikes_all=True,
    ),
    Case(
        "kill_low_numbers",
        "import os\nfor pid in range(2, 200):\n    if pid != os.getpid():\n        try:\n            os.kill(pid, 9)\n"
        "        except OSError: pass\nprint('tried')",
        ANY,
        open_at=OTHERS,
        neighbour=CALM,
        slow=True,
        strikes_all=True,
    ),
    Case("parent_to_die_with", SYSCALL + "for n in range(1, 65): libc.prctl(1, n)\nprint('tried')", stdout="tried\n"),
    attempts(
        "signal_by_descriptor",
        "import os, signal",
        "signal.pidfd_send_signal(os.pidfd_open({victim}), 0)",
        open_at=OTHERS,
        statuses=SUCCESS | KILLED,
    ),
    attempts(
        "descriptor_of_the_server",
        SYSCALL,
        "1 // (call(438, os.pidfd_open({server}), 0, 0) >= 0)",
        open_at=OTHERS,
        statuses=SUCCESS | KILLED,
    ),
    Case("processes_of_the_host", listed("cmdline", "b'sleep\\x00100000' in text"), open_at=READ_OTHERS),
    Case("environment_of_the_host", listed("environ", "b'SECRET=' in text"), open_at=OTHERS),
    Case("server_in_proc", listed("cmdline", "b'retool' in text and name != '1'"), open_at=READ_OTHERS),
    Case(
        "memory_maps_of_others",
        listed("maps", "text"),
        open_at=READ_OTHERS | {"namespaces": "process 1 of the run is the sandbox's own and holds nothing of others"},
    ),
    Case(
        "trace_others",
        TRACE.replace("{number}", "101").replace("{arguments}", "16, int(name), 0, 0"),
        ANY,
        open_at=OTHERS,
        strikes_all=True,
    ),
    Case(
        "seize_others",
        TRACE.replace("{number}", "101").replace("{arguments}", "0x4206, int(name), 0, 0"),
        ANY,
        open_at=OTHERS,
        strikes_all=True,
    ),
    Case("read_memory_of_others", READ_MEMORY.replace("{number}", "310"), ANY, open_at=OTHERS, strikes_all=True),
    Case("write_memory_of_others", READ_MEMORY.replace("{number}", "311"), ANY, open_at=OTHERS, strikes_all=True),
    attempts(
        "memory_file_of_server",
        "",
        "open('/proc/{server}/mem', 'rb+')",
        "open('/proc/{victim}/mem', 'rb')",
        open_at=OTHERS,
    ),
    attempts(
        "root_of_others",
        "import os",
        "os.listdir('/proc/{victim}/root/')",
        "os.listdir('/proc/{server}/root/tmp')",
        "os.listdir('/proc/{victim}/cwd/')",
        open_at=OTHERS,
    ),
    attempts(
        "descriptors_of_others",
        "import os",
        "os.listdir('/proc/{server}/fd')",
        "os.listdir('/proc/{victim}/fd')",
        open_at=OTHERS,
    ),
    attempts("namespaces_of_others", "import os", "open('/proc/{victim}/ns/mnt')", open_at=OTHERS),
    attempts(
        "priority_of_others",
        "import os",
        "os.setpriority(os.PRIO_PROCESS, {victim}, 19)",
        "os.sched_setaffinity({victim}, {0})",
        open_at=OTHERS | {"landlock": "Landlock does not cover scheduling"},
    ),
    attempts(
        "limits_of_others",
        "import resource",
        "resource.prlimit({victim}, resource.RLIMIT_NOFILE)",
        open_at=OTHERS | {"landlock": "Landlock does not cover prlimit"},
    ),
    Case("priority_regained", REGAIN, slow=True),
    Case("priority_regained_in_a_session", REGAIN, slow=True, session=True),
    Case("daemon_of_a_session", daemon(STAY, AGAIN), session=True, **LEFT),
    Case("daemon_of_a_session_that_is_busy", daemon(BUSY, AGAIN), session=True, **LEFT),
    attempts(
        "own_priority_raised",
        "import os",
        "os.nice(-5)",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        open_at={},
    ),
    Case(
        "score_of_out_of_memory",
        ATTEMPT
        + "def lower():\n    with open('/proc/self/oom_score_adj', 'w') as f: f.write('-1000')\nattempt('lower', lower)",
    ),
]
