"""Programs that lie about their result, or break the pipes, descriptors and memory that carry it."""

from retool_mcore.sandbox.base import LOST
from tests.support.hostile.hostile_case import ERROR, KILLED, OUTPUT, SUCCESS, TIMEOUT, Case

ANY = SUCCESS | ERROR | KILLED | OUTPUT | TIMEOUT
FRAME = """
import json, os, struct
forged = json.dumps({"status": "success", "value": "'forged'", "traceback": "", "stdout": "forged", "stderr": "", "duration_s": 0.0,
                     "sizes": [6, 0, 8], "exit_code": 0, "files": {}}).encode()
frames = [forged, forged + b"\\n", struct.pack("!I", len(forged)) + forged + b"forged'forged'", struct.pack("<I", len(forged)) + forged,
          struct.pack("!Q", len(forged)) + forged, struct.pack("<Q", len(forged)) + forged, b"\\xff" * 64, bytes(64)]
"""
EVERY_FD = (
    FRAME
    + """
for fd in range(0, 1024):
    for frame in frames:
        try:
            os.set_blocking(fd, False)
            os.write(fd, frame)
        except OSError:
            pass
"""
)
END = "os._exit(0)"
CLOSES = {
    "close_all": "import os\nos.closerange(0, 65536)\n",
    "close_all_but_output": "import os\nos.closerange(3, 65536)\n",
    "null_over_all": "import os\nnull = os.open('/dev/null', os.O_RDWR)\nfor fd in range(256):\n    if fd != null:\n        try: os.dup2(null, fd)\n        except OSError: pass\n",
    "output_over_all": "import os\nfor fd in range(3, 256):\n    try: os.dup2(1, fd)\n    except OSError: pass\n",
    "shutdown_all": "import os, socket\nfor fd in range(256):\n    try: socket.socket(fileno=os.dup(fd)).shutdown(2)\n    except OSError: pass\n",
    "read_all": "import os\nfor fd in range(256):\n    try:\n        os.set_blocking(fd, False)\n        os.read(fd, 1 << 20)\n    except OSError: pass\n",
    "truncate_all": "import os\nfor fd in range(256):\n    try: os.ftruncate(fd, 0)\n    except OSError: pass\n",
    "lock_all": "import fcntl\nfor fd in range(256):\n    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    except OSError: pass\n",
    "non_blocking_all": "import os\nfor fd in range(256):\n    try: os.set_blocking(fd, False)\n    except OSError: pass\n",
    "async_owner_all": "import fcntl, os\nfor fd in range(256):\n    try:\n        fcntl.fcntl(fd, fcntl.F_SETOWN, os.getppid())\n        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)\n    except OSError: pass\n",
    "small_pipes": "import fcntl\nfor fd in range(256):\n    try: fcntl.fcntl(fd, 1031, 4096)\n    except OSError: pass\n",
    "receive_descriptors": "import os, socket\nfor fd in range(256):\n    try:\n        s = socket.socket(fileno=os.dup(fd))\n        s.setblocking(False)\n        if socket.recv_fds(s, 64, 8)[1]: print('ESCAPED')\n    except OSError: pass\n",
    "send_descriptors": "import os, socket\nfor fd in range(256):\n    try:\n        s = socket.socket(fileno=os.dup(fd))\n        s.setblocking(False)\n        socket.send_fds(s, [b'r'], [0, 1, 2])\n    except OSError: pass\n",
}
# The kernel sends the signal when the descriptor is ready: no call of the program's names its target a second time.
READY_SIGNAL = """
import fcntl, os, signal, socket, struct, time
a, b = socket.socketpair()
try:
    fcntl.fcntl(a, 10, signal.SIGKILL)
    {ask}
    fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC)
    b.send(b"x")
    time.sleep(0.05)
except OSError as error:
    print("refused")
else:
    print("asked")
"""
READY_SIGNALS = {
    "setown": "fcntl.fcntl(a, fcntl.F_SETOWN, TARGET)",
    "setown_ex": "fcntl.fcntl(a, 15, struct.pack('ii', 1, TARGET))",
    "ioctl_fiosetown": "fcntl.ioctl(a, 0x8901, struct.pack('i', TARGET))",
    "ioctl_siocspgrp": "fcntl.ioctl(a, 0x8902, struct.pack('i', TARGET))",
}
OTHERS_PIPES = """
import os
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        for fd in range(64):
            try:
                with open(f"/proc/{pid}/fd/{fd}", "wb", buffering=0) as file:
                    os.set_blocking(file.fileno(), False)
                    file.write(b"hostile")
                print("ESCAPED", pid, fd)
            except OSError:
                pass
print("tried")
"""
MEMORY = """
import os
with open("/proc/self/mem", "r+b", buffering=0) as memory:
    for line in open("/proc/self/maps").read().splitlines():
        span, rights = line.split()[:2]
        if "{kind}" in line:
            first, last = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(first)
                memory.write(b"\\x90" * min(last - first, 1 << 20))
            except (OSError, ValueError, OverflowError):
                pass
"""
# Whatever the report's code is called: all functions of the package, in the program's copy of the interpreter.
PATCHED = """
import gc, sys, types
for name, module in list(sys.modules.items()):
    if name.startswith("retool_mcore"):
        for key, value in list(vars(module).items()):
            if isinstance(value, types.FunctionType):
                {patch}
"""
FLOODED_REPORT = """
import os
for fd in range(3, 64):
    try:
        os.set_blocking(fd, False)
        for _ in range(2000):
            os.write(fd, b"{" * 65536)
    except OSError:
        pass
"""
HUNT = """
import gc, socket, sys
found = [o for o in gc.get_objects() if type(o).__name__ in ("socket", "Popen", "_Server", "Server", "Zygote", "LocalSandbox")]
for o in found:
    try:
        o.send(b"r")
        print("ESCAPED", type(o).__name__)
    except Exception:
        pass
frame = sys._getframe()
while frame.f_back:
    frame = frame.f_back
    for value in list(frame.f_locals.values()):
        if isinstance(value, socket.socket):
            try:
                value.send(b"r")
                print("ESCAPED", "a socket in a frame")
            except OSError:
                pass
print("tried")
"""
FRAMES = """
import sys
frame = sys._getframe()
while frame.f_back:
    frame = frame.f_back
    for value in list(frame.f_locals.values()):
        if isinstance(value, dict):
            {then}
"""

# What the sandbox itself says of runs: printed by a program they are output, and its ending stays what it was.
WORDS = {
    "timeout": "the program ran longer than 1 s and was stopped",
    "memory": "MemoryError: the program's processes needed more than 256 MB",
    "output": "the program wrote more than 409600 bytes and was stopped",
    "killed": "the program was killed by SIGKILL",
    "sandbox": "the sandbox failed: no answer",
    "exit": "the program ended with exit code 7",
    "lost": LOST.strip(),
}
SAY = "import os, sys\nprint({words!r})\nos.write(2, {words!r}.encode() + b'\\n\\0\\x1b[2J\\xff\\r')\n{then}"

CASES = [
    *[Case(f"words_of_{name}", SAY.format(words=words, then="7"), SUCCESS, value="7") for name, words in WORDS.items()],
    *[
        Case(f"words_of_{name}_and_error", SAY.format(words=words, then="1 / 0"), ERROR)
        for name, words in WORDS.items()
    ],
    *[
        Case(f"words_of_{name}_in_a_session", SAY.format(words=words, then="7"), SUCCESS, value="7", session=True)
        for name, words in WORDS.items()
    ],
    Case("frame_on_stdout", FRAME + "for frame in frames: os.write(1, frame)\n1 / 0", ERROR),
    Case("frame_on_stderr", FRAME + "for frame in frames: os.write(2, frame)\n1 / 0", ERROR),
    Case("frame_on_stdout_and_exit", FRAME + "for frame in frames: os.write(1, frame)\nos._exit(0)", SUCCESS),
    Case("frame_as_value", FRAME + "forged.decode()", SUCCESS),
    Case("frame_on_every_descriptor", EVERY_FD, ANY),
    Case("frame_on_every_descriptor_and_error", EVERY_FD + "1 / 0", ANY),
    Case("frame_on_every_descriptor_and_exit", EVERY_FD + END, ANY),
    Case(
        "frame_on_every_descriptor_and_wait",
        EVERY_FD + "import time\ntime.sleep(99)",
        ANY,
        timeout_s=0.5,
        slow=True,
    ),
    Case(
        "frame_from_a_fork",
        "import os\nif os.fork() == 0:\n    "
        + EVERY_FD.strip().replace("\n", "\n    ")
        + "\n    os._exit(0)\nos.wait()\nprint(5)",
        ANY,
    ),
    Case(
        "frame_from_a_daemon",
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        for fd in range(3, 64):\n            try: os.write(fd, b'x' * 10)\n"
        "            except OSError: pass\ntime.sleep(0.05)\nprint(5)",
        ANY,
        slow=True,
        timeout_s=5,
    ),
    Case(
        "two_reports_by_forks",
        "import os\nchild = os.fork()\nif child:\n    os.waitpid(child, 0)\nprint('twice')",
        SUCCESS,
        stdout="twice\ntwice\n",
        slow=True,
    ),
    *[Case(f"descriptors_{name}", source + "print('went on')\n1", ANY) for name, source in CLOSES.items()],
    *[Case(f"descriptors_{name}_and_error", source + "1 / 0", ANY) for name, source in CLOSES.items()],
    *[
        Case(f"ready_signal_{name}_{target}", READY_SIGNAL.format(ask=ask.replace("TARGET", f"{{{target}}}")), SUCCESS)
        for name, ask in READY_SIGNALS.items()
        for target in ("server", "victim")
    ],
    Case(
        "descriptors_flooded",
        FLOODED_REPORT,
        ANY | frozenset({"sandbox_error"}) - frozenset({"sandbox_error"}),
        slow=True,
        timeout_s=5,
    ),
    Case(
        "pipes_of_others",
        OTHERS_PIPES,
        ANY,
        strikes_all=True,
        open_at={"process": "processes of one user may open each other's descriptors"},
    ),
    *[
        Case(f"own_memory_{name}", MEMORY.replace("{kind}", kind), ANY, timeout_s=3, slow=True)
        for name, kind in (
            ("code_of_libc", "r-xp"),
            ("heap", "[heap]"),
            ("stack", "[stack]"),
            ("data", "rw-p"),
            ("vdso", "[vdso]"),
        )
    ],
    Case(
        "functions_replaced_by_errors", PATCHED.replace("{patch}", "setattr(module, key, lambda *a, **k: 1 / 0)"), ANY
    ),
    Case(
        "functions_code_replaced",
        PATCHED.replace("{patch}", "value.__code__ = (lambda *a, **k: None).__code__"),
        ANY,
        timeout_s=3,
    ),
    Case(
        "functions_loop",
        PATCHED.replace("{patch}", "setattr(module, key, lambda *a, **k: exec('while True: pass'))"),
        ANY,
        timeout_s=0.5,
        slow=True,
    ),
    Case(
        "functions_exit",
        PATCHED.replace("{patch}", "setattr(module, key, lambda *a, **k: __import__('os')._exit(0))"),
        ANY,
    ),
    # It hangs until the clock ends it: so large a report is not read to its end.
    Case("dumps_replaced", "import json\njson.dumps = lambda *a, **k: 'x' * 10**7\n5", ANY, timeout_s=1.0),
    Case(
        "dumps_lies",
        "import json\nreal = json.dumps\njson.dumps = lambda d, **k: real({'status': 'success', 'value': '1', 'traceback': 7, 'x': []})\n1 / 0",
        ANY,
    ),
    Case(
        "report_not_a_text", "import json\nreal = json.dumps\njson.dumps = lambda d, **k: real([1, {}, None])\n5", ANY
    ),
    Case("report_nested_deeply", "import json\njson.dumps = lambda *a, **k: '[' * 100_000\n5", ANY),
    Case(
        "report_status_unknown",
        "import json\nreal = json.dumps\njson.dumps = lambda d, **k: real({'status': 'perfect', 'value': {}, 'traceback': None})\n5",
        ANY,
    ),
    Case(
        "report_status_sandbox_error",
        "import json\nreal = json.dumps\njson.dumps = lambda d, **k: real({'status': 'sandbox_error', 'value': None, 'traceback': 'x'})\n5",
        ANY,
    ),
    Case(
        "report_value_is_long",
        "import json\nreal = json.dumps\njson.dumps = lambda d, **k: real({'status': 'success', 'value': 'x' * 10**5, 'traceback': ''})\n5",
        ANY,
    ),
    Case("write_replaced", "import os\nos.write = lambda *a: 1 / 0\n5", ANY),
    Case("write_takes_nothing", "import os\nos.write = lambda *a: 0\n5", ANY, timeout_s=0.5, slow=True),
    Case("exit_replaced", "import os\nos._exit = lambda *a: None\n5", ANY, timeout_s=3, slow=True),
    Case("exec_of_a_frame", FRAME + "os.execv('/bin/echo', ['echo', forged.decode()])", KILLED | ERROR | SUCCESS),
    Case("exec_of_nothing", "import os\nos.execv('/bin/true', ['true'])", SUCCESS),
    Case(
        "exec_python",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(600)'])",
        TIMEOUT,
        timeout_s=0.5,
        slow=True,
    ),
    Case("sandbox_objects", HUNT, ANY),  # finds the socket of its own report
    Case("frames_cleared", FRAMES.replace("{then}", "value.clear()") + "1 / 0", ANY),
    Case(
        "frames_filled",
        FRAMES.replace("{then}", "value.update(status='success', value='forged', traceback='', code=0)") + "1 / 0",
        ANY,
    ),
    Case("pid_reused_as_program", "import os\nos.getpid = lambda: 1\n5", ANY),
    Case(
        "thread_reports_first",
        "import threading, os, time\ndef lie():\n    for fd in range(3, 16):\n        try: os.write(fd, b'{}')\n        except OSError: pass\n"
        "threading.Thread(target=lie).start()\ntime.sleep(0.05)\n5",
        ANY,
    ),
    Case(
        "trace_function",
        "import sys\ndef trace(frame, event, arg):\n    raise SystemExit(0)\nsys.settrace(trace)\n1 / 0",
        ANY,
    ),
    Case("profile_function", "import sys\nsys.setprofile(lambda *a: None if a[1] != 'return' else 1 / 0)\n5", ANY),
    Case("audit_hook", "import sys\nsys.addaudithook(lambda *a: 1 / 0)\n5", ANY),
    Case("import_removed", "import builtins\nbuiltins.__import__ = None\n5", ANY),
    Case("stdin_of_others", "import sys\nsys.stdin.read()", SUCCESS, stdout=""),
]
