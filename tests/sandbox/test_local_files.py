"""Files in and out, counters and limits over all of a run's processes."""

import asyncio

import pytest
from levels_here import LEVELS_HERE

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local import LocalSandbox


@pytest.fixture(scope="module", params=LEVELS_HERE)
def box(request):
    sandbox = LocalSandbox(timeout_s=60, memory_mb=200, workers=4, preload=("math",), max_isolation=request.param)
    yield sandbox
    asyncio.run(sandbox.close())


def run(box, code, **options):
    return asyncio.run(box.run(code, **options))


def test_files_go_in_and_come_out(box):
    code = "data = open('in/a.bin', 'rb').read()\nopen('out', 'wb').write(data[::-1])\nlen(data)"
    result = run(box, code, files={"in/a.bin": b"\x00\xff12"}, fetch_files=["out", "missing", "in/a.bin"])
    assert result.value == "4" and result.exit_code == 0
    assert result.files == {"out": b"21\xff\x00", "in/a.bin": b"\x00\xff12"}


def test_files_come_out_of_a_program_that_was_stopped(box):
    result = run(box, "open('kept', 'w').write('1')\nwhile True: pass", timeout_s=3, fetch_files=["kept"])
    assert result.status is Status.TIMEOUT and result.files == {"kept": b"1"}


def test_no_link_and_no_pipe_is_followed(box):
    code = """
import os
os.symlink('/etc/hostname', 'link')
os.symlink('/etc', 'folder')
os.mkfifo('pipe')
"""
    result = run(box, code, fetch_files=["link", "folder/passwd", "pipe", "."])
    assert (result.status, result.files) == (Status.SUCCESS, {})


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", ""])
def test_paths_outside_are_refused(box, path):
    with pytest.raises(UserError, match="relative path"):
        run(box, "1", files={path: b""})
    with pytest.raises(UserError, match="relative path"):
        run(box, "1", fetch_files=[path])


def test_memory_of_all_processes_together_is_bounded(box):
    code = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        data = b'x' * (120 * 2**20)
        time.sleep(1000)
time.sleep(1000)
"""
    result = run(box, code)
    assert result.status is Status.MEMORY and "200 MB" in result.observation()


def test_memory_limit_of_a_single_run(box):
    assert run(box, "len(bytearray(50 * 2**20))", memory_mb=20).status is Status.MEMORY
    assert run(box, "len(bytearray(50 * 2**20))", memory_mb=120).status is Status.SUCCESS


def test_nothing_of_a_program_is_left_for_the_next(box):
    assert run(box, "x = 5").status is Status.SUCCESS
    assert run(box, "x").stderr.endswith("NameError: name 'x' is not defined\n")


def test_a_program_that_ignores_the_end_of_its_processor_time_is_killed(box):
    code = "import resource\nprint(resource.getrlimit(resource.RLIMIT_CPU)[1] < 100)"
    assert run(box, code, timeout_s=10).stdout == "True\n"


def test_exit_codes_and_counters(box):
    before = box.stats()["runs"].get("error", 0)
    assert run(box, "raise SystemExit(3)").exit_code == 3
    assert run(box, "1 / 0").exit_code == 1
    assert run(box, "import os\nos.kill(os.getpid(), 15)").exit_code == 128 + 15
    stats = box.stats()
    assert stats["runs"]["error"] == before + 2
    assert len(stats["pids"]) == 2 and stats["restarts"] == 0 and stats["running"] == stats["waiting"] == 0


def test_a_forged_report_is_only_the_programs_own_value(box):
    forged = run(box, "import os\nos.write(3, b'\\0\\0\\0\\x02\\0\\0\\0\\0{}')\n'mine'")
    assert forged.status in (Status.SUCCESS, Status.KILLED)
    garbage = run(box, "import os\nos.write(3, os.urandom(100000))\n1")
    assert garbage.status in (Status.SUCCESS, Status.KILLED)
    assert run(box, "40 + 2").value == "42" and box.stats()["restarts"] == 0
