"""What holds whatever the level: no root, no reading of our own package, no voiding of a group by a forged failure."""

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from levels_here import HIDDEN, LEVELS_HERE

import retool_mcore
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation import namespaces
from retool_mcore.sandbox.local import LocalSandbox


def run(code, **options):
    async def main():
        box = LocalSandbox(timeout_s=60, preload=(), workers=1, **options)
        try:
            return await box.run(code)
        finally:
            await box.close()

    return asyncio.run(main())


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_no_program_has_roots_id(level):
    async def main():
        box = LocalSandbox(timeout_s=60, preload=(), workers=1, max_isolation=level)
        try:
            await box.run("1")
            # Programs are forks of the second; these are its ids as the host sees them.
            return [Path(f"/proc/{pid}/status").read_text() for pid in box.stats()["pids"]]
        finally:
            await box.close()

    for status in asyncio.run(main()):
        ids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
        assert "0" not in ids


def test_programs_run_where_files_are_their_users_alone():
    before = os.umask(0o077)
    try:
        assert run("print(1)", max_isolation="namespaces").stdout == "1\n"
    finally:
        os.umask(before)


@pytest.mark.skipif(not HIDDEN, reason="needs root and a Python that only root can read")
def test_where_only_root_can_read_this_python_nothing_is_run_below_namespaces():
    with pytest.raises(UserError, match="no user id but root's can run programs here"):
        run("1", max_isolation="process")


def test_the_floor_is_landlock_and_a_weaker_level_says_what_it_does_not_hold(caplog):
    assert LocalSandbox().min_isolation == "landlock"
    assert LocalSandbox(min_isolation="process").min_isolation == "process"
    assert LocalSandbox(max_isolation="process").min_isolation == "process", "asked for"
    if not HIDDEN:
        with caplog.at_level(logging.WARNING):
            run("1", max_isolation="process")
        assert "does not keep them from this user's files (the data's answers among them)" in caplog.text


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_a_program_cannot_say_that_the_sandbox_failed(level):
    """Such a trajectory is made again with its whole group: a policy that forges it never earns what it deserves."""
    forged = """
import json, os, struct, sys
header = json.dumps({"status": "sandbox_error", "value": None, "was_cut": False, "traceback": "x", "exit_code": 1})
for fd in range(3, 64):
    for sent in ({"begun": True}, {"failed": "x"}, {"exit_code": 0}, json.loads(header)):
        text = json.dumps(sent).encode()
        try:
            os.write(fd, struct.pack("!II", len(text), 0) + text)
        except OSError:
            pass
os._exit(7)
"""
    result = run(forged, max_isolation=level)
    assert (result.status, result.exit_code, result.value) == (Status.ERROR, 7, None), result


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_status_value_and_exit_code_are_what_the_parent_saw(level):
    """Nothing in the program's process speaks for it: not its open sockets, nor what it makes of our functions."""
    for lie in (
        "import sys\nframe = sys._getframe()\nwhile frame:\n    for value in list(frame.f_locals.values()):\n"
        "        if isinstance(value, dict) and 'exit_code' in value: value['exit_code'] = 0\n    frame = frame.f_back",
        "import gc, json, socket, struct\ndata = json.dumps({'exit_code': 0}).encode()\n"
        "for s in [o for o in gc.get_objects() if isinstance(o, socket.socket)]:\n"
        "    try: s.sendall(struct.pack('!II', len(data), 0) + data)\n    except OSError: pass",
    ):
        result = run(f"{lie}\nprint('said')\n1 / 0", max_isolation=level)
        assert (result.status, result.exit_code, result.value) == (Status.ERROR, 1, None), result
        assert result.stdout == "said\n" and "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_a_session_cannot_void_its_group_between_its_runs(level):
    """Its process lives on and holds a socket of ours: what it says there before its next run is no failure of ours."""
    forged = """
import json, os, struct, threading, time
text = json.dumps({"failed": "x"}).encode()
def lie():
    time.sleep(0.3)
    os.write(3, struct.pack("!II", len(text), 0) + text)
threading.Thread(target=lie, daemon=True).start()
"""

    async def main():
        box = LocalSandbox(preload=(), timeout_s=60.0, max_isolation=level)
        try:
            await box.run(forged, session="a" * 16)
            await asyncio.sleep(1.0)
            return await box.run("6 * 7", session="a" * 16)
        finally:
            await box.close()

    assert asyncio.run(main()).status is not Status.SANDBOX


@pytest.mark.parametrize("level", LEVELS_HERE)
def test_a_program_has_a_file_and_a_source(level):
    code = "import inspect\nclass Box:\n    size = 3\nprint(__file__)\nprint(inspect.getsource(Box))"
    assert run(code, max_isolation=level).stdout == "<code>\nclass Box:\n    size = 3\n\n"


def test_no_link_shows_a_hidden_folder_under_another_name(tmp_path):
    """Landlock allows what a path leads to, and an environment's lib64 leads to its lib."""
    package = tmp_path / "env/lib/site-packages/retool_mcore"
    (package / "tasks").mkdir(parents=True)
    (package.parent / "numpy").mkdir()
    for link, target in (
        ("env/lib64", "lib"),
        ("env/lib/up", ".."),
        ("env/tasks", "lib/site-packages/retool_mcore/tasks"),
        ("e", "env"),
    ):
        (tmp_path / link).symlink_to(target)
    for root in ("env", "e"):
        shown = namespaces.without([str(tmp_path / root)], [str(package)])
        whole = [path for path, all_below in shown if all_below]
        assert whole == [str(package.parent / "numpy")] and len(shown) == 4


@pytest.mark.parametrize("level", LEVELS_HERE[:2])
def test_our_package_is_not_there_for_programs_where_it_is_installed(level, readable_path):
    """As `pip install .` does: in the Python's own folder of packages, with the tasks' reference answers in it."""
    environment = readable_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    packages = next(environment.glob("lib/python*/site-packages"))
    own = Path(retool_mcore.__file__).parent
    subprocess.run(["cp", "-r", own, packages / "retool_mcore"], check=True)
    (packages / "neighbour.py").write_text("here = 1")
    program = f"""
import neighbour, os
print(neighbour.here)
for path in ({str(packages)!r} + "/retool_mcore/tasks/functions.py", {str(packages)!r} + "/retool_mcore/__init__.py"):
    try:
        print(len(open(path).read()))
    except OSError as error:
        print("refused")
"""
    script = f"""
import asyncio
from retool_mcore.sandbox.local import LocalSandbox, sandbox
assert sandbox.__file__.startswith({str(packages)!r})
async def main():
    box = LocalSandbox(preload=(), timeout_s=60, workers=1, max_isolation={level!r})
    result = await box.run({program!r})
    print(result.stdout + result.stderr)
    await box.close()
asyncio.run(main())
"""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", script], cwd="/", env=environ, capture_output=True, text=True, timeout=100)
    assert done.stdout.split() == ["1", "refused", "refused"], done.stderr
