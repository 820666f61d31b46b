"""Processes that are forked from a template: as those that were started, but for what they need not import."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ray._private.runtime_env.context import RuntimeEnvContext
from ray.core.generated.common_pb2 import Language

from retool_mcore.backends.forked_python import PYTHON, SOCKET, program_of, worker_of
from retool_mcore.runner import processes, template

SERVER = """
import pathlib
from retool_mcore.runner import template
template.MODULES = {{"both": ["decimal"], "cpu": [], "cuda": []}}
template.main({!r})
"""


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """Of a process whose python is forked; the template has imported one module instead of fifty."""
    path = tmp_path_factory.mktemp("template") / "socket"
    code = SERVER.format(path).replace("PosixPath", "pathlib.PosixPath")
    base = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": ""}  # python adds the folder of a script
    given = {**base, processes.STAGE_ID: template._NO_STAGE, "COLOUR": "template"}
    server = subprocess.Popen([sys.executable, "-c", code, " " * template.TITLE_ROOM], env=given)
    while not path.exists():
        assert server.poll() is None
        time.sleep(0.02)
    yield {**base, **template.variables(path)}
    server.kill()
    server.wait()


def run(env, code: str, *arguments: str, **options):
    command = [env[PYTHON], "-c", code, *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, **options)


def test_a_child_is_forked_with_the_command_environment_folder_and_streams_of_its_caller(env, tmp_path):
    code = "import os, sys; print('decimal' in sys.modules, sys.argv, os.environ['COLOUR'], os.getcwd(), input())"
    caller = {"COLOUR": "caller", "TOKENIZERS_PARALLELISM": "true"}  # read when it is used: verl's cold start sets it
    done = run({**env, **caller}, code, "one", cwd=tmp_path, input="typed")
    assert done.stdout == f"True ['-c', 'one'] caller {tmp_path} typed\n"


def test_a_script_and_a_module_see_what_python_would_show_them(env, tmp_path):
    (tmp_path / "beside.py").write_text("name = 'beside'")
    (tmp_path / "script.py").write_text("import sys, beside; print(__name__, sys.argv, beside.name)")
    for command, first in ([["script.py", "x"], "script.py"], [["-m", "script", "x"], str(tmp_path / "script.py")]):
        done = subprocess.run([env[PYTHON], "-u", *command], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout == f"__main__ [{first!r}, 'x'] beside\n", done.stderr


def test_exit_codes_errors_and_signals_come_back(env):
    assert run(env, "raise SystemExit(7)").returncode == 7
    failed = run(env, "1 / 0")
    assert failed.returncode == 1 and "ZeroDivisionError" in failed.stderr
    assert run(env, "import os; os.kill(os.getpid(), 9)").returncode == -signal.SIGKILL
    said = run(env, "import sys; sys.exit('what was wrong')")
    assert (said.returncode, said.stderr) == (1, "what was wrong\n")


def test_a_child_ends_with_its_threads_exit_functions_and_output_but_clears_no_module(env):
    code = """
import atexit, threading, time
class Kept:
    def __del__(self): print("cleared", flush=True)
kept, local = Kept(), [Kept()]
local.clear()
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
print("program")
"""
    for end, status in (("", 0), ("raise SystemExit", 0), ("raise SystemExit(5)", 5)):
        done = run(env, code + end)
        assert (done.stdout.split("\n"), done.returncode, done.stderr) == (
            ["cleared", "program", "thread", "at exit", ""], status, "",
        )  # fmt: skip


def sleeper(env, code="import os, time; print(os.getpid(), flush=True); time.sleep(60)"):
    process = subprocess.Popen([env[PYTHON], "-c", code], env=env, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if processes.read(pid) is None:
            return True
        time.sleep(0.02)
    return False


def test_a_signal_reaches_the_child_and_killing_its_stand_in_kills_it(env):
    process, pid = sleeper(env)
    assert pid != process.pid
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM and gone(pid)
    process, pid = sleeper(env)
    process.kill()
    process.wait(30)
    assert gone(pid)


def test_a_stages_mark_and_command_are_seen_in_proc(env):
    process, pid = sleeper({**env, processes.STAGE_ID: "a-stage-node0"})
    assert {found.pid for found in processes.find("a-stage-node0")} >= {pid}
    assert b"time.sleep(60)" in Path(f"/proc/{pid}/cmdline").read_bytes()
    process.kill()
    process.wait()


def test_children_are_sessions_of_their_own_with_random_numbers_of_their_own(env):
    code = "import os, random, numpy; print(os.getsid(0) == os.getpid(), random.random(), numpy.random.rand())"
    lines = [run(env, code).stdout.split() for _ in range(2)]
    assert [line[0] for line in lines] == ["True", "True"]
    assert lines[0][1] != lines[1][1] and lines[0][2] != lines[1][2]


def test_multiprocessing_forks_from_the_template_too(env):
    code = """
import multiprocessing, sys
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(abs, [-1, -2]), pool.apply(eval, ("'decimal' in __import__('sys').modules",)))
"""
    assert run(env, code).stdout == "[1, 2] True\n"


def test_descriptors_keep_their_numbers(env):
    read, write = os.pipe()
    done = run(env, f"import os; os.write({write}, b'through')", pass_fds=[write])
    os.close(write)
    assert done.returncode == 0 and os.read(read, 100) == b"through"
    os.close(read)


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "OMP_NUM_THREADS"])
def test_another_environment_of_imports_gets_an_interpreter_of_its_own(env, variable):
    done = run({**env, variable: "7"}, "import sys; print('decimal' in sys.modules)")
    assert done.stdout == "False\n"


def test_without_a_template_the_stand_in_is_python(env):
    done = run({**env, SOCKET: "/nowhere/socket"}, "import sys; print('decimal' in sys.modules, sys.argv)", "x")
    assert done.stdout == "False ['-c', 'x']\n"


def test_flags_that_repeat_the_environment_are_no_hindrance():
    spawned = ["-B", "-Wignore", "-c", "spawn_main()", "--multiprocessing-fork"]
    assert program_of(spawned) == ("-c", "spawn_main()", ["--multiprocessing-fork"])


@pytest.mark.parametrize("arguments", [["-I", "-c", "1"], ["-X", "dev", "x.py"], [], ["-"], ["-m"]])
def test_what_needs_an_interpreter_of_its_own_is_not_forked(arguments):
    assert program_of(arguments) is None


def test_what_is_started_meanwhile_is_forked_and_nothing_afterwards(monkeypatch, tmp_path):
    monkeypatch.setattr(template, "_started", lambda folder, env, stack: template.variables(tmp_path / "socket"))
    monkeypatch.setenv(SOCKET, "on")
    monkeypatch.delenv(PYTHON, raising=False)
    cpu = {**os.environ, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    with pytest.raises(ZeroDivisionError), template.begun(cpu):
        assert (os.environ[SOCKET], os.environ[PYTHON]) == (str(tmp_path / "socket"), str(tmp_path / "python"))
        raise ZeroDivisionError
    assert os.environ[SOCKET] == "on" and PYTHON not in os.environ
    with template.begun(cpu | {SOCKET: "off"}):
        assert PYTHON not in os.environ


SITE = "/lib/site-packages/ray/"
SETUP, WORKER = SITE + "_private/workers/setup_worker.py", SITE + "_private/workers/default_worker.py"


def asked_of_ray(context: dict, language: str = "PYTHON") -> list[str]:
    told = [f"--serialized-runtime-env-context={json.dumps(context)}", f"--language={language}"]
    return [SETUP, WORKER, "--node-ip-address=127.0.0.1", *told, "--runtime-env-hash=7"]


def test_a_worker_of_ray_begins_as_its_set_up_would_begin_it(monkeypatch):
    plain = {"command_prefix": [], "env_vars": {"COLOUR": "a ${COLOUR}${NONE}"}, "py_executable": "/usr/bin/python"}
    monkeypatch.setenv("COLOUR", "before")
    ours = worker_of(asked_of_ray(plain))
    assert ours == [WORKER, "--node-ip-address=127.0.0.1", "--runtime-env-hash=7"]
    assert os.environ["COLOUR"] == "a before"
    said = []  # by the installed release
    monkeypatch.setenv("COLOUR", "before")
    monkeypatch.setattr(os, "execvp", lambda file, args: said.append(args[-1]))
    RuntimeEnvContext.deserialize(json.dumps(plain)).exec_worker(list(ours), Language.PYTHON)
    assert said == [f"exec /usr/bin/python {shlex.join(ours)}"] and os.environ["COLOUR"] == "a before"


@pytest.mark.parametrize("more", [{"command_prefix": ["nice"]}, {"override_worker_entrypoint": "/elsewhere.py"}])
def test_what_ray_sets_up_by_more_than_variables_is_left_to_ray(more):
    command = asked_of_ray(more)
    assert worker_of(command) == command and program_of(command) is None
    assert worker_of(asked_of_ray({}, "JAVA")) == asked_of_ray({}, "JAVA")


def test_of_rays_processes_only_workers_are_forked():
    assert program_of([WORKER, "--x"]) == ("script", WORKER, ["--x"])
    assert program_of(["-u", SITE + "dashboard/agent.py"]) is None


def test_only_stages_on_the_cpu_are_forked():
    command = [sys.executable, "-m", "x"]
    cpu = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    for env in ({}, cpu | {"OMP_NUM_THREADS": "2"}, cpu | {SOCKET: "off"}):
        with template.forked(env, command) as found:
            assert found == (env, command)
    running = {**cpu, **template.variables(Path("/t/socket"))}
    with template.forked(running, command) as (env, forked):
        assert env == running and forked == ["/t/python", "-m", "x"]
    with template.forked(running, ["srun", "x"]) as (_, unchanged):
        assert unchanged == ["srun", "x"]
