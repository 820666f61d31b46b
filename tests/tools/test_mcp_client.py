"""Against a real server of the official SDK, over both transports."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode
from retool_mcore.tools.mcp_client import McpServer
from retool_mcore.tools.toolbox import Toolbox

SERVER = str(Path(__file__).with_name("mcp_adder.py"))


@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.e2e)])
def server(request):
    if request.param == "stdio":
        server = McpServer(command=sys.executable, args=[SERVER])
        yield server
        server.shut()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            asyncio.run(asyncio.sleep(0.1))
        server = McpServer(url=f"http://127.0.0.1:{port}/mcp", names=["add", "fail"])
        yield server
        server.shut()
    finally:
        process.kill()
        process.wait()


def test_tools_are_the_servers_and_answer_from_any_event_loop(server):
    box = Toolbox(server.tools, timeout_s=600)
    assert sorted(box.tools) == ["add", "fail"]
    assert box.tools["add"].schema["function"]["description"] == "Add two whole numbers."
    for a in (2, 40):
        reply = asyncio.run(box.call("add", {"a": a, "b": 2}, Episode()))
        assert (reply.text, reply.status) == (str(a + 2), "success")
    failed = asyncio.run(box.call("fail", {"reason": "on purpose"}, Episode()))
    assert failed.status == "error"
    asyncio.run(box.close())
    ended = asyncio.run(box.call("add", {"a": 1, "b": 2}, Episode()))
    assert ended.status == "error" and "has ended" in ended.text


def test_a_server_that_cannot_be_used_is_refused():
    with pytest.raises(UserError, match="either a command"):
        McpServer()
    with pytest.raises(UserError, match="no-such-program-here"):
        McpServer(command="no-such-program-here")
