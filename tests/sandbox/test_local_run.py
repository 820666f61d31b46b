"""Single programs in the local back-end, at every level of isolation."""

import asyncio
import os

import pytest
from levels_here import LEVELS_HERE

from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation import LEVELS
from retool_mcore.sandbox.local import LocalSandbox

MEMORY_MB = 200
LIMIT_BYTES = 4096
# What is enough for any of these programs on a slow, busy machine; no assertion waits for it.
AMPLE_S = 60.0


@pytest.fixture(scope="module", params=LEVELS_HERE)
def box(request):
    sandbox = LocalSandbox(
        timeout_s=AMPLE_S,
        memory_mb=MEMORY_MB,
        max_output_bytes=LIMIT_BYTES,
        workers=4,
        preload=("math", "random", "numpy.random"),
        max_isolation=request.param,
    )
    yield sandbox
    asyncio.run(sandbox.close())


def run(box, code, **options):
    return asyncio.run(box.run(code, **options))


def test_stdout_and_value(box):
    result = run(box, "print('hi')\n6 * 7")
    assert (result.status, result.stdout, result.value, result.stderr) == (Status.SUCCESS, "hi\n", "42", "")
    assert 0 < result.duration_s < AMPLE_S


def test_level_is_reported(box):
    run(box, "1")
    assert box.level == box._options["max_isolation"]
    assert ("max_isolation" in box.level_reason) == (box.level != LEVELS[-1])


def test_fences_stdin_and_main(box):
    assert (
        run(box, "```python\nif __name__ == '__main__':\n    print(input()[::-1])\n```", stdin="abc\n").stdout
        == "cba\n"
    )
    assert run(box, "len(input())", stdin="x" * 300_000).value == "300000"


def test_an_error_shows_the_programs_own_line_and_no_library_frames(box):
    code = "import json\ndef load(text):\n    return json.loads(text)\nprint('before')\nload('{')"
    result = run(box, code)
    assert (result.status, result.stdout) == (Status.ERROR, "before\n")
    assert 'File "<code>", line 3, in load' in result.stderr and "return json.loads(text)" in result.stderr
    assert result.stderr.count("File ") == 2
    assert result.observation().endswith("(char 1)") and "retool" not in result.stderr


def test_chained_errors_and_failing_reprs_hide_the_machinery(box):
    result = run(
        box,
        "class A:\n    def __repr__(self):\n        try:\n            1/0\n        finally:\n            {}[1]\nA()",
    )
    assert result.status is Status.ERROR and "ZeroDivisionError" in result.stderr and "KeyError: 1" in result.stderr
    assert "program.py" not in result.stderr and "line 7, in <module>" in result.stderr


def test_syntax_error_names_its_line(box):
    result = run(box, "x = 1\nfor:\n    pass")
    assert result.status is Status.ERROR
    assert 'File "<code>", line 2' in result.stderr and "SyntaxError" in result.observation()
    assert run(box, "(" * 5000 + ")" * 5000).status is Status.ERROR


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import sys\nsys.exit()", Status.SUCCESS),
        ("import sys\nsys.exit(0)", Status.SUCCESS),
        ("raise SystemExit(2)", Status.ERROR),
        ("import sys\nsys.exit('no way')", Status.ERROR),
        ("import os\nos._exit(0)", Status.SUCCESS),
        ("import os\nos._exit(3)", Status.ERROR),
        ("import os\nos.execv('/bin/false', ['false'])", Status.ERROR),
        ("import os\nos.kill(os.getpid(), 9)", Status.KILLED),
        ("import ctypes\nctypes.string_at(0)", Status.KILLED),
        ("raise KeyboardInterrupt", Status.ERROR),
        ("def f(): f()\nf()", Status.ERROR),
        ("import sys\nsys.stdout.close()", Status.SUCCESS),
        ("print('\\ud800')", Status.SUCCESS),
    ],
)
def test_endings(box, code, status):
    result = run(box, code)
    assert result.status is status
    assert (result.observation() != "") == (status is not Status.SUCCESS or "ud800" in code)


def test_wall_time_also_ends_a_program_that_ignores_signals(box):
    code = (
        "import signal, time\nfor n in (1, 2, 15):\n    signal.signal(n, signal.SIG_IGN)\nprint('on')\ntime.sleep(1000)"
    )
    result = run(box, code, timeout_s=2)  # pytest ends what waits for the program itself
    assert result.status is Status.TIMEOUT and result.stdout == "on\n"
    assert 2 <= result.duration_s < 1000
    assert "longer than 2 s" in result.observation()


def test_memory(box):
    for code in (
        "x = bytearray(10**9)",
        "x = []\nwhile True:\n    x.append('a' * 10**6)",
        "import numpy\nnumpy.ones(10**9)",
    ):
        result = run(box, code)
        assert result.status is Status.MEMORY
        assert f"{MEMORY_MB} MB" in result.observation()
    assert run(box, f"len(bytearray({MEMORY_MB // 2} * 2**20))").status is Status.SUCCESS


def test_long_output_keeps_head_and_tail(box):
    result = run(box, "print('start')\nfor i in range(3000): print('é' * 9)\nprint('end')")
    assert result.status is Status.OUTPUT
    assert result.stdout.startswith("start\n") and result.stdout.endswith("end\n")
    assert len(result.stdout.encode()) < LIMIT_BYTES + 100 and "\ufffd" not in result.stdout
    result = run(box, "'x' * 10**6")
    assert result.status is Status.OUTPUT and len(result.value) < LIMIT_BYTES + 100
    assert f"{10**6 + 2 - LIMIT_BYTES} bytes of output cut" in result.value
    assert run(box, f"'x' * {LIMIT_BYTES - 2}").status is Status.SUCCESS


def test_endless_output_is_stopped_early(box):
    result = run(box, "while True: print('x' * 1000)")
    assert result.status is Status.OUTPUT and result.duration_s < AMPLE_S
    assert "was stopped" in result.observation()


def test_fork_bombs_end_and_leave_nothing(box):
    result = run(
        box, "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", timeout_s=3
    )
    assert result.status in (Status.KILLED, Status.TIMEOUT)
    assert run(box, "1").value == "1"


def test_what_runs_long_gives_way_with_all_its_processes_but_a_session_does_not(box):
    own = os.nice(0)
    low = min(19, own + 14)  # two processes, each of half the weight of one at 10
    code = f"""
import os, time
child = os.fork()
if child == 0:
    os.setsid()
while os.nice(0) < {low}:
    time.sleep(0.01)
if child == 0:
    os._exit(0)
print(os.wait()[1], os.nice(0))
"""
    assert run(box, code).stdout == f"0 {low}\n"
    assert run(box, "import os, time\ntime.sleep(0.5)\nos.nice(0)", session="n").value == str(own)
    asyncio.run(box.end_session("n"))


def test_descendants_end_with_the_run_and_cannot_hold_it_up(box, take_name, named_below):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('grandchild', flush=True)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(0.2)
"""
    result = run(box, take_name("stays") + code)
    assert result.status is Status.SUCCESS and result.stdout == "grandchild\n" and result.duration_s < AMPLE_S
    assert named_below(box._server.process.pid, "stays") == []


def test_only_the_program_itself_reports_not_its_forks(box):
    result = run(box, "import os\nchild = os.fork()\nif child:\n    os.wait()\nprint('both')\nchild > 0")
    assert (result.status, result.stdout, result.value) == (Status.SUCCESS, "both\nboth\n", "True")
    result = run(box, "import os\nif os.fork() == 0:\n    1 / 0\nos.wait()\n'parent'")
    assert result.status is Status.SUCCESS and result.value == "'parent'" and "ZeroDivisionError" in result.stderr


def test_environment_and_files_are_private(box, monkeypatch):
    result = run(box, "import os\nopen('x', 'w').write('1')\nprint(sorted(os.environ), os.listdir('.'), os.getcwd())")
    assert "['x']" in result.stdout
    assert not any(name in result.stdout for name in ("PYTHONPATH", "PYTEST", "USER", "SSH"))
    second = run(box, "import os\nos.path.exists('x')")
    assert second.value == "False"
    if box.level == "process":
        work_dir = result.stdout.split()[-1]
        assert not os.path.exists(work_dir)


def test_random_state_differs_between_runs(box):
    code = "import random, numpy\nrandom.random(), float(numpy.random.rand())"
    first, second = run(box, code).value, run(box, code).value
    assert not set(first.strip("()").split(", ")) & set(second.strip("()").split(", "))


def test_hashes_do_not_differ_between_servers(box):
    assert run(box, "hash('a')").value == run(LocalSandbox(preload=()), "hash('a')").value


def test_threads_and_subprocesses_work(box):
    code = """
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
pool.submit(print, 'late')
subprocess.run([sys.executable, '-c', 'print(3)'], check=True)
"""
    assert sorted(run(box, code).stdout.split()) == ["3", "late"]


EXPECTED = {
    "namespaces": ("FileNotFoundError", "OSError", "OSError", "ProcessLookupError"),
    "landlock": ("PermissionError", "PermissionError", "PermissionError", "PermissionError"),
    "process": ("s", "skipped", "PermissionError", "PermissionError"),
}


def test_files_processes_and_the_network_are_out_of_reach(box, readable_path):
    secret = readable_path / "secret"
    secret.write_text("s")
    result = run(
        box,
        f"""
import os, socket
def attempt(action):
    try:
        return action() or 'ok'
    except OSError as error:
        return type(error).__name__
print(attempt(lambda: open({str(secret)!r}).read()))
print(attempt(lambda: open(os.path.dirname(os.__file__) + '/probe', 'w')) if {box.level != "process"} else 'skipped')
print(attempt(lambda: socket.create_connection(('127.0.0.1', 9), timeout=5)))
print(attempt(lambda: os.kill({os.getpid()}, 0)))
""",
    )
    assert tuple(result.stdout.split()) == EXPECTED[box.level]


def test_no_capability_is_left(box):
    code = "[l for l in open('/proc/self/status') if l.startswith('CapEff')][0].split()[1]"
    if box.level != "landlock":  # which hides /proc
        assert int(run(box, code).value.strip("'"), 16) == 0
