"""A storage unit's sockets take only what has the job's key, and a key that would not be in force is told."""

import pytest
from forked_programs import lines_printed, started

from retool_mcore.backends.env import JOB_SECRET

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# A real storage unit without Ray: what its worker thread does with a message is what the exploit is of.
UNIT = """
from tests.support.queue_keys import attacked
private_sockets.install()
from transfer_queue.storage.simple_storage import SimpleStorageUnit
unit = SimpleStorageUnit.__ray_metadata__.modified_class({"_run_id": "x"})
private_sockets.assert_in_force()
print(attacked(unit.zmq_server_info.ip, unit.zmq_server_info.ports["put_get_socket"]))
"""
NOT_IN_FORCE = """
import sys, zmq
def tell(what):
    try:
        what()
    except RuntimeError as error:
        print(error)
has, zmq.has = zmq.has, lambda what: False
private_sockets.install()
tell(lambda: __import__("transfer_queue"))
for name in [name for name in sys.modules if name.startswith("transfer_queue")]:
    del sys.modules[name]
zmq.has = has
tell(private_sockets.assert_in_force)
tell(private_sockets.install)
"""
HTTP = """
import asyncio, fastapi, psutil
private_sockets.install()
from verl.workers.rollout.utils import run_uvicorn
async def main():
    port, _ = await run_uvicorn(fastapi.FastAPI(), None, "0.0.0.0")
    print([link.laddr.ip for link in psutil.Process().net_connections("tcp") if link.laddr.port == port], flush=True)
    os._exit(0)
asyncio.run(main())
"""
PROGRAMS = {"without": ("", UNIT), "with": ("s", UNIT), "not in force": ("s", NOT_IN_FORCE), "http": ("s", HTTP)}


START = f"""
import os
os.environ[{JOB_SECRET!r}] or os.environ.pop({JOB_SECRET!r})
from retool_mcore.backends.verl import private_sockets
"""


@pytest.fixture(scope="module")
def printed(shared_template) -> dict[str, list[str]]:
    """The lines that each program prints with its secret, none where it is empty."""
    return lines_printed({name: started(START + text, **{JOB_SECRET: key}) for name, (key, text) in PROGRAMS.items()})


def test_a_storage_unit_unpickles_only_what_has_the_key(printed):
    assert (printed["without"][-1], printed["with"][-1]) == ("True", "False")


def test_a_key_that_would_not_be_in_force_is_told_at_the_start(printed):
    curve, not_in_force, late = printed["not in force"][-3:]
    assert "was built without CURVE" in curve
    assert "Ray did not run private_sockets.install" in not_in_force
    assert "was imported before its sockets were given the job's key" in late


def test_the_http_server_of_an_engine_stays_on_loopback(printed):
    assert printed["http"][-1] == "['127.0.0.1']"
