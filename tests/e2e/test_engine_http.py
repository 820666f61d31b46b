"""The HTTP side of an engine's server is nobody's but this machine's, whatever address verl would bind it to."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from forked_programs import lines_printed, started

SERVER = """
import asyncio
from verl.workers.rollout.vllm_rollout import vllm_async_server as verls

async def run_server(self, args):
    print("bound to", self._server_address, flush=True)

verls.vLLMHttpServer.run_server = run_server
from retool_mcore.backends.verl import replica
made = object.__new__(replica.vLLMHttpServer)
made._server_address = "10.0.0.1"  # by which servers of one engine on several nodes find each other
asyncio.run(made.run_server(None))
print("known as", made._server_address, flush=True)
"""


def test_verl_binds_it_to_the_address_that_is_replaced():
    source = Path(find_spec("verl").origin).parent / "workers/rollout/vllm_rollout/vllm_async_server.py"
    assert "await run_uvicorn(app, args, self._server_address)" in source.read_text()


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_it_stays_on_loopback(shared_template):
    printed = lines_printed({"server": started(SERVER)})["server"]
    assert printed[-2:] == ["bound to 127.0.0.1", "known as 10.0.0.1"]
