"""Programs that do not end, or do not want to be ended."""

from tests.support.hostile.hostile_case import KILLED, SUCCESS, TIMEOUT, Case, timed_out

ENDLESS = {
    "loop": "while True: pass",
    "power_in_c": "10 ** 10 ** 10",
    "factorial_in_c": "import math\nmath.factorial(10**8)",
    "regex": "import re\nre.match('(a+)+$', 'a' * 60 + 'b')",
    "regex_alternation": "import re\nre.match('(a|aa)+$', 'a' * 80 + 'b')",
    "sympy_factor": "import sympy\nsympy.factorint(2**1061 - 1)",
    "sympy_integrate": "from sympy import *\nx = symbols('x')\nfor n in range(99): integrate(exp(x**7)*sin(x**5)**n/(1+x**9), x)",
    "decimal": "import decimal\ndecimal.getcontext().prec = 10**8\ndecimal.Decimal(2).sqrt()",
    "numpy_matmul": "import numpy\na = numpy.random.rand(1500, 1500)\nwhile True: a = a @ a / 1e3",
    "sum_in_c": "sum(range(10**12))",
    "sort_in_c": "x = list(range(10**6))\nwhile True: x.sort(key=lambda v: -v)",
    "itertools_in_c": "import itertools, collections\ncollections.deque(itertools.count(), maxlen=0)",
    "str_to_int": "import sys\nsys.set_int_max_str_digits(0)\nint('9' * 5_000_000)",
    "int_to_str": "import sys\nsys.set_int_max_str_digits(0)\nstr(7 ** 6_000_000)",
    "hash_collisions": "x = {}\nfor i in range(10**9): x[i * (2**61 - 1)] = i",
    "long_sleep": "import time\ntime.sleep(10**6)",
    "read_of_a_pipe": "import os\nos.read(os.pipe()[0], 1)",
    "lock": "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "select": "import select\nselect.select([], [], [])",
    "sigwait": "import signal\nsignal.sigwait(set(range(1, 65)) - {9, 19, 32, 33})",
    "except_everything": "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    "stopped_by_itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "child_that_holds_the_pipes": "import os, time\nif os.fork() == 0:\n    time.sleep(99)\nos.wait()",
    "busy_thread_at_the_end": "import threading\ndef work():\n    while True: pass\nthreading.Thread(target=work).start()",
    "atexit_that_loops": "import threading\nthreading._register_atexit(lambda: exec('while True: pass'))",
    "alarm_storm": "import signal\nsignal.signal(14, lambda *_: None)\nsignal.setitimer(0, 1e-5, 1e-5)\nwhile True: pass",
    "busy_children": "import os\nfor _ in range(4):\n    os.fork()\nwhile True: pass",
}
IGNORE = """
import signal, time
for number in range(1, 65):
    try:
        signal.signal(number, {action})
    except (OSError, ValueError):
        pass
print("on", flush=True)
{then}
"""
BLOCK = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nprint('on', flush=True)\n"
LOOP = "while True: pass"


def is_on(result) -> str | None:
    return None if result.stdout.startswith("on\n") else "what was printed before the end is lost"


def ignoring(action: str, then: str) -> str:
    return IGNORE.replace("{action}", action).replace("{then}", then)


CASES = [
    # The kernel may also say that the processor time is used up.
    *[timed_out(f"endless_{name}", source) for name, source in ENDLESS.items()],
    timed_out("ignore_all_signals_and_loop", ignoring("signal.SIG_IGN", LOOP), check=is_on),
    timed_out("ignore_all_signals_and_sleep", ignoring("signal.SIG_IGN", "time.sleep(999)"), check=is_on),
    timed_out("handle_all_signals", ignoring("lambda *_: None", LOOP), check=is_on, statuses=TIMEOUT),
    timed_out("block_all_signals", BLOCK + LOOP, check=is_on),
    timed_out("print_then_loop", "print('on')\n" + LOOP, check=is_on),
    timed_out("print_without_newline_then_loop", "print('on\\nhalf', end='')\n" + LOOP, check=is_on),
    timed_out("close_pipes_and_loop", "import os\nos.closerange(0, 1024)\n" + LOOP, statuses=TIMEOUT | KILLED),
    timed_out(
        "children_ignore_signals",
        "import os\nos.fork()\nos.fork()\n" + ignoring("signal.SIG_IGN", "time.sleep(999)"),
        check=is_on,
    ),
    timed_out(
        "tempt_the_clock_with_nice",
        "import os\nos.nice(19)\n" + LOOP,
    ),
    Case(
        "daemon_thread_left",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint(1)",
        stdout="1\n",
    ),
    Case(
        "alarm_left",
        "import signal\nsignal.signal(14, signal.SIG_IGN)\nsignal.setitimer(0, 0.01, 0.01)\nprint(1)",
        SUCCESS,
        stdout="1\n",
    ),
    Case("alarm_kills", "import signal, time\nsignal.setitimer(0, 0.01)\ntime.sleep(9)", KILLED),
    Case(
        "xcpu_by_itself",
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGXCPU)\ntime.sleep(9)",
        KILLED | TIMEOUT,
    ),
]
