"""The client against a real HTTP server that answers as SandboxFusion does."""

import asyncio
import base64
import subprocess
import sys

import pytest
from aiohttp import web

from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.fusion import FusionSandbox


def exchange(answer, code="1", run_options=None, **options):
    """Run `code` against a server whose replies `answer(request, attempt)` makes; the result and the requests seen."""
    requests = []

    async def main():
        async def handle(request):
            requests.append(await request.json())
            made = answer(requests[-1], len(requests))
            return web.json_response(made) if isinstance(made, dict) else made

        app = web.Application()
        app.router.add_post("/run_code", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        box = FusionSandbox(url=f"http://127.0.0.1:{port}/run_code", **options)
        result = await box.run(code, stdin="in", **(run_options or {}))
        await runner.cleanup()
        return result

    return asyncio.run(main()), requests


def reply(service="Success", message="", **run_result):
    fields = {"status": "Finished", "stdout": "", "stderr": "", "return_code": 0, "execution_time": 0.25}
    return {"status": service, "message": message, "run_result": fields | run_result}


def really_run(request, attempt):
    done = subprocess.run([sys.executable, "-c", request["code"]], capture_output=True, text=True)
    return reply(
        "Failed" if done.returncode else "Success", return_code=done.returncode, stdout=done.stdout, stderr=done.stderr
    )


def test_the_request_is_the_services():
    result, requests = exchange(lambda *_: reply(stdout="x\n"), "```python\ny = 1\n```", timeout_s=7, memory_mb=99)
    assert requests == [{"code": "y = 1", "language": "python", "run_timeout": 7, "memory_limit_MB": 99, "stdin": "in"}]
    assert (result.status, result.stdout, result.value, result.duration_s) == (Status.SUCCESS, "x\n", None, 0.25)


def test_value_and_line_numbers_survive_the_service():
    result, _ = exchange(really_run, "print('a')\nx = 20\nx + 1")
    assert (result.stdout, result.value) == ("a\n", "21")
    result, _ = exchange(really_run, "x = 1\nx / 0")
    assert result.status is Status.ERROR and "line 2" in result.stderr and result.value is None


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (reply("Failed", status="Error", return_code=1, stderr="ValueError: x"), Status.ERROR, "ValueError: x"),
        (reply("Failed", status="TimeLimitExceeded", return_code=None), Status.TIMEOUT, "30 s"),
        (reply("Failed", return_code=1, stderr="Traceback\nMemoryError"), Status.MEMORY, "1024 MB"),
        (reply("Failed", return_code=-9), Status.KILLED, "signal 9"),
        (reply("Failed", return_code=3), Status.ERROR, "exit code 3"),
        (reply("SandboxError", message="no room"), Status.SANDBOX, "no room"),
        ({"detail": "?"}, Status.SANDBOX, "no run_result"),
        (reply(stdout="y" * 50_000), Status.OUTPUT, "bytes of output cut"),
    ],
)
def test_replies_are_mapped(answer, status, words):
    result, requests = exchange(lambda *_: answer)
    assert result.status is status and words in result.observation()
    # A sandbox error may pass; what the program did will not.
    assert len(requests) == (3 if status is Status.SANDBOX else 1)


def test_trouble_of_the_service_is_retried():
    def answer(request, attempt):
        return web.Response(status=502) if attempt < 3 else reply(stdout="ok\n")

    result, requests = exchange(answer)
    assert result.stdout == "ok\n" and len(requests) == 3


def test_lasting_trouble_is_a_sandbox_error():
    result, requests = exchange(lambda *_: web.Response(status=502), patience_s=0.3)
    assert result.status is Status.SANDBOX and "within 0.3 s" in result.observation() and "502" in result.observation()
    result, requests = exchange(lambda *_: web.Response(text="{}", status=500))
    assert result.status is Status.SANDBOX and "500" in result.observation() and len(requests) == 3
    result, requests = exchange(lambda *_: web.Response(text="no such thing", status=404))
    assert result.status is Status.SANDBOX and "no such thing" in result.observation() and len(requests) == 1


def test_files_go_both_ways():
    made = reply() | {"files": {"out": base64.b64encode(b"\x00made").decode()}}
    result, requests = exchange(lambda *_: made, run_options={"files": {"in": b"\xff"}, "fetch_files": ["out"]})
    assert requests[0]["files"] == {"in": "/w=="} and requests[0]["fetch_files"] == ["out"]
    assert result.files == {"out": b"\x00made"}


def test_sessions_are_refused():
    with pytest.raises(UserError, match="no sessions"):
        asyncio.run(FusionSandbox(url="http://x").run("1", session="s"))
