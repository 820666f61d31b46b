"""TransferQueue passes its data with the job's key, and a message from a socket without one runs nothing."""

import secrets
import subprocess
import sys

import pytest

from benchmarks.cluster import queue_keys as rig
from retool_mcore.backends.env import JOB_SECRET, stage_env

SOCKETS = 4  # two of the controller, one of each storage unit


@pytest.mark.e2e
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "secret",
    [pytest.param(None, id="without", marks=pytest.mark.nightly), pytest.param(secrets.token_hex(32), id="with")],
)
def test_one_message_of_a_stranger_runs_code_only_where_there_is_no_secret(secret):
    found = rig.run(secret)
    assert [row["megabytes"] > 0 for row in found["rows"]] == [True] * len(rig.COLUMNS), "its data did not pass"
    assert list(found["executed"].values()) == [secret is None] * SOCKETS, found["executed"]


def run(code: str, **env: str) -> list[str]:
    """The lines that a program prints in a stage's environment; an empty value takes a variable away."""
    env = {name: value for name, value in (stage_env({"parallel": {"device": "cpu"}}) | env).items() if value}
    command = [sys.executable, "-c", f"from retool_mcore.backends.verl import private_sockets\n{code}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# A real storage unit without Ray: what its worker thread does with a message is what the exploit is of.
UNIT = """
from benchmarks.cluster.queue_keys import attacked
private_sockets.install()
from transfer_queue.storage.simple_storage import SimpleStorageUnit
unit = SimpleStorageUnit.__ray_metadata__.modified_class({"_run_id": "x"})
private_sockets.assert_in_force()
print(attacked(unit.zmq_server_info.ip, unit.zmq_server_info.ports["put_get_socket"]))
"""


@pytest.mark.parametrize(("secret", "executed"), [("", "True"), ("s", "False")])
def test_a_storage_unit_unpickles_only_what_has_the_key(secret, executed):
    assert run(UNIT, **{JOB_SECRET: secret})[-1] == executed


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


def test_a_key_that_would_not_be_in_force_is_told_at_the_start():
    curve, not_in_force, late = run(NOT_IN_FORCE, **{JOB_SECRET: "s"})[-3:]
    assert "was built without CURVE" in curve
    assert "Ray did not run private_sockets.install" in not_in_force
    assert "was imported before its sockets were given the job's key" in late


HTTP = """
import asyncio, os, fastapi, psutil
private_sockets.install()
from verl.workers.rollout.utils import run_uvicorn
async def main():
    port, _ = await run_uvicorn(fastapi.FastAPI(), None, "0.0.0.0")
    print([link.laddr.ip for link in psutil.Process().net_connections("tcp") if link.laddr.port == port], flush=True)
    os._exit(0)
asyncio.run(main())
"""


def test_the_http_server_of_an_engine_stays_on_loopback():
    assert run(HTTP, **{JOB_SECRET: "s"})[-1] == "['127.0.0.1']"
