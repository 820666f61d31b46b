"""Who gets into the sandbox service, and what one caller can do to the others."""

import asyncio
import json
import resource
import socket
import sys
from pathlib import Path

import aiohttp
import pytest

from retool_mcore.errors import UserError
from retool_mcore.files import shown
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.create import describe
from retool_mcore.sandbox.service import app as service_app
from retool_mcore.sandbox.service.hosts import clean_url
from retool_mcore.sandbox.service.pool import PoolSandbox
from retool_mcore.sandbox.service.serve import serve

sys.path.insert(0, str(Path(__file__).parents[1] / "sandbox"))
from services import Gate, served  # noqa: E402

TOKEN = "a-token-of-this-test"
RUN = {"code": "1", "language": "python"}


def ask(*requests, token=None, gate=None):
    """[(status, detail or stdout)] of (method, path, options) against a service in this process."""

    async def main():
        async with served(gate or Gate(), token=token) as (_, url), aiohttp.ClientSession() as http:
            found = []
            for method, path, options in requests:
                async with http.request(method, url + path, **options) as reply:
                    body = await reply.text()
                    found.append((reply.status, body))
            return found

    return asyncio.run(main())


def post(headers=None, **fields):
    return "POST", "/run_code", {"json": RUN | fields, "headers": headers or {}}


def test_a_service_with_a_token_runs_nothing_without_it():
    right = [{"Authorization": f"Bearer {TOKEN}"}, {"Authorization": aiohttp.BasicAuth("retool", TOKEN).encode()}]
    wrong = [{}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Basic !"},
             {"Authorization": "Bearer \u00fc"}, {"Authorization": aiohttp.BasicAuth(TOKEN, "").encode()}]  # fmt: skip
    assert [status for status, _ in ask(*map(post, right), token=TOKEN)] == [200, 200]
    gate = Gate()
    found = ask(*map(post, wrong), ("DELETE", "/session/x", {}), ("GET", "/metrics", {}), token=TOKEN, gate=gate)
    assert [status for status, _ in found] == [401] * len(found) and gate.order == []
    assert "token is missing or wrong" in json.loads(found[0][1])["detail"]
    assert [status for status, _ in ask(("GET", "/health", {}), ("GET", "/v1/ping", {}), token=TOKEN)] == [200, 200]


def test_the_pool_shows_the_token_of_the_address_and_never_prints_it():
    async def main():
        async with served(Gate(), token=TOKEN) as (_, url):
            with_token = url.replace("http://", f"http://retool:{TOKEN}@")
            good = await PoolSandbox(hosts=[with_token]).run("hello", session="s" * 16)
            refused = await PoolSandbox(hosts=[url.replace("http://", "http://retool:wrong@")]).run("hello")
            return good, refused, describe(PoolSandbox(hosts=[with_token]))

    good, refused, described = asyncio.run(main())
    assert (good.status, good.stdout) == (Status.SUCCESS, "hello\n")
    assert refused.status is Status.SANDBOX and "HTTP 401" in refused.stderr
    assert "wrong@" not in refused.stderr and TOKEN not in described
    assert shown(f"http://retool:{TOKEN}@node:8080/run_code") == "http://node:8080/run_code"
    with pytest.raises(UserError) as raised:
        clean_url(f"ftp://retool:{TOKEN}@node")
    assert TOKEN not in str(raised.value)


def test_a_web_page_gets_nothing_whatever_it_sends():
    gate = Gate()
    body = json.dumps(RUN)
    found = ask(
        ("POST", "/run_code", {"data": body, "headers": {"Content-Type": "text/plain"}}),
        ("POST", "/run_code", {"data": body, "headers": {"Content-Type": "text/plain", "Origin": "http://evil"}}),
        post({"Origin": "http://evil"}),
        post({"Host": "rebound.evil:8080"}),
        gate=gate,
    )
    assert [status for status, _ in found] == [415, 403, 403, 403] and gate.order == []
    assert ask(post({"Host": "localhost:1"}))[0][0] == 200


def test_counts_and_names_have_limits():
    found = ask(
        post(fetch_files=["x"] * 1001),
        post(files={str(n): "" for n in range(1001)}),
        post(fetch_files=["x" * 1025]),
        post(request_id="x" * 129),
        post(trajectory="x" * 129),
        post(session="x" * 129),
        post(session="short"),
    )
    assert [status for status, _ in found] == [422] * 7
    assert "at least 16 characters" in json.loads(found[-1][1])["detail"]


def test_a_request_id_gives_its_reply_only_to_the_same_request():
    gate = Gate()
    mine, again, other = ask(post(request_id="r"), post(request_id="r"), post(request_id="r", code="2"), gate=gate)
    assert mine[1] == again[1] and gate.order == ["1", "2"] and other[1] != mine[1]


def test_sessions_are_bounded(monkeypatch):
    monkeypatch.setattr(service_app, "MAX_SESSIONS", 2)
    gate = Gate()
    ask(*[post(session=f"{n}" * 16) for n in range(4)], gate=gate)
    assert [end for end in gate.ended if len(end) == 16] == ["0" * 16, "1" * 16]


def test_only_this_machine_reaches_a_service_without_a_token(monkeypatch):
    monkeypatch.delenv("RETOOL_SANDBOX_TOKEN", raising=False)
    with pytest.raises(UserError, match="--register FOLDER"):
        asyncio.run(serve({"kind": "local"}, host="0.0.0.0", port=0))


@pytest.mark.timeout(100)
def test_ten_thousand_half_open_connections_do_not_stop_a_neighbour(monkeypatch):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    monkeypatch.setattr(service_app, "HEAD_S", 2.0)
    count = min(10_000, hard // 3)

    async def main():
        async with served(Gate()) as (service, url):
            server = service.runner.server
            sweeper = asyncio.create_task(service_app.end_headless(server))
            port, half_open, answers = int(url.rpartition(":")[2]), [], []
            async with aiohttp.ClientSession() as http:
                for n in range(count):
                    connection = socket.socket()
                    connection.setblocking(False)
                    half_open.append(connection)
                    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
                    connection.send(b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nX: ")
                    if n % 1000 == 999:
                        async with http.post(url + "/run_code", json=RUN) as reply:
                            answers.append(reply.status)
                most = len(server.connections)
                while len(server.connections) > 1:
                    await asyncio.sleep(0.1)
            sweeper.cancel()
            for connection in half_open:
                connection.close()
            return answers, most

    answers, most = asyncio.run(main())
    assert answers == [200] * (count // 1000)
    assert most < 10_000
