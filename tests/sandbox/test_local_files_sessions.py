"""Files in and out, sessions, counters and limits over all of a run's processes."""

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


def test_a_session_keeps_its_variables_and_others_do_not_see_them(box):
    assert run(box, "x = 5", session="a").status is Status.SUCCESS
    assert run(box, "x + 1", session="a").value == "6"
    assert run(box, "1 / 0", session="a").status is Status.ERROR
    assert run(box, "x", session="a").value == "5"
    assert run(box, "x", session="b").status is Status.ERROR and run(box, "x").status is Status.ERROR
    for name in "ab":
        asyncio.run(box.end_session(name))
    ended = run(box, "x", session="a")
    assert ended.status is Status.ERROR and "lost" not in ended.stderr
    asyncio.run(box.end_session("a"))


def test_a_session_that_hit_a_limit_says_so_at_its_next_run(box):
    run(box, "x = 1", session="c")
    assert run(box, "while True: pass", session="c", timeout_s=2).status is Status.TIMEOUT
    following = run(box, "print('on')", session="c")
    assert following.stdout == "on\n" and "lost" in following.stderr.split("\n")[0]
    assert run(box, "2", session="c").stderr == ""
    asyncio.run(box.end_session("c"))


def test_runs_of_one_session_take_turns(box):
    async def main():
        await box.run("seen = []", session="d")
        await asyncio.gather(*[box.run(f"seen.append({i}); len(seen)", session="d") for i in range(4)])
        result = await box.run("sorted(seen)", session="d")
        await box.end_session("d")
        return result

    assert asyncio.run(main()).value == "[0, 1, 2, 3]"


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


def test_exit_codes_and_counters(box):
    before = box.stats()["runs"].get("error", 0)
    assert run(box, "raise SystemExit(3)").exit_code == 3
    assert run(box, "1 / 0").exit_code == 1
    assert run(box, "import os\nos.kill(os.getpid(), 15)").exit_code == 128 + 15
    stats = box.stats()
    assert stats["runs"]["error"] == before + 2
    assert len(stats["pids"]) == 2 and stats["restarts"] == 0 and stats["running"] == stats["waiting"] == 0


def test_what_a_session_writes_to_our_socket_is_dropped_and_a_single_program_has_none(box):
    for sent in ("b'\\0\\0\\0\\x02\\0\\0\\0\\0{}'", "os.urandom(100000)"):
        garbage = run(box, f"import os\nos.write(3, {sent})\n'mine'", session="g", timeout_s=2)
        assert garbage.status in (Status.SUCCESS, Status.TIMEOUT)
        asyncio.run(box.end_session("g"))
        assert "Bad file descriptor" in run(box, f"import os\nos.write(3, {sent})").stderr
    assert run(box, "40 + 2").value == "42" and box.stats()["restarts"] == 0
