"""Level "namespaces": the namespaces of a run serve the next one, which finds nothing of it."""

import asyncio
import time

import pytest

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.isolation import descendants
from retool_mcore.sandbox.local import LocalSandbox
from retool_mcore.sandbox.local.inits import MAX_RUNS

LEAVES = """
import os, socket, sys, time
sys.stdout.flush()
os.makedirs('/tmp/program/folder/deep')
for path in ('/tmp/left', '/tmp/program/left', '/dev/shm/left'):
    open(path, 'w').write('x' * 2**20)
os.chmod('/tmp', 0o777)
listener = socket.socket(socket.AF_UNIX)
listener.bind('\\0left')
ready, go = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.chdir('/dev/shm')
    os.write(go, b'1')
    while True:
        time.sleep(1000)
os.read(ready, 1)
"""
LOOKS = """
import os, socket
socket.socket(socket.AF_UNIX).bind('\\0left')
used = os.statvfs('/tmp')
others = [p for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid())]
seen = os.listdir('/tmp/program'), os.listdir('/dev/shm'), sorted(os.listdir('/tmp')), oct(os.stat('/tmp').st_mode)
print(os.getpid(), used.f_blocks - used.f_bfree, others, *seen)
"""


@pytest.fixture
def box():
    sandbox = LocalSandbox(timeout_s=60, workers=2, preload=("math",))
    try:
        asyncio.run(sandbox.start())
    except UserError as error:
        pytest.skip(str(error))
    if sandbox.level != "namespaces":
        asyncio.run(sandbox.close())
        pytest.skip(sandbox.level_reason)
    yield sandbox
    asyncio.run(sandbox.close())


def standing(box):
    """Process ids of the two inits that wait for a program, once there are two."""
    server = box._server.process.pid
    deadline = time.monotonic() + 30
    last = None
    while time.monotonic() < deadline:
        with open(f"/proc/{server}/task/{server}/children") as file:
            found = {int(pid) for pid in file.read().split()} - {box._server.zygote}
        if len(found) == 2 and found == last:
            return found
        last = found
        time.sleep(0.2)
    raise AssertionError(f"{last} stand ready")


def run(box, code, **options):
    return asyncio.run(box.run(code, **options))


def test_the_next_run_in_the_same_namespaces_finds_nothing(box):
    seen, ids = set(), []
    for _ in range(12):
        assert run(box, LEAVES + "1").value == "1"
        pid, found = run(box, LOOKS).stdout.split(" ", 1)
        ids.append(int(pid))
        seen.add(found)
    assert len(seen) == 1 and "left" not in seen.pop()
    assert max(ids) > 4  # otherwise nothing served twice, and nothing was tested


def test_namespaces_of_a_run_that_was_killed_do_not_serve_again(box):
    first = standing(box)
    assert run(box, "import os\nos.kill(os.getpid(), 9)").status is Status.KILLED
    assert len(standing(box) & first) == 1


def test_none_serves_for_ever(box):
    ids = [int(run(box, "import os\nos.getpid()").value) for _ in range(3 * MAX_RUNS)]
    assert max(ids) <= 2 * MAX_RUNS and len(descendants(box._server.process.pid)) < 30
