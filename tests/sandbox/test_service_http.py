"""The service over HTTP: SandboxFusion's requests and replies, refusals in one sentence, back-pressure, drain."""

import asyncio
import base64
import json

import aiohttp
import pytest
from services import Gate, served, until

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.local import LocalSandbox
from retool_mcore.sandbox.service import schema
from retool_mcore.sandbox.service.pool import PoolSandbox


def talk(dialogue, sandbox=None, **options):
    """`await dialogue(http session, url, service)` with a service over `sandbox`."""

    async def main():
        async with served(sandbox or Gate(), **options) as (service, url), aiohttp.ClientSession() as http:
            return await dialogue(http, url, service)

    return asyncio.run(main())


async def post(http, url, body, **fields):
    data = body if isinstance(body, bytes) else json.dumps(body | fields).encode()
    async with http.post(f"{url}/run_code", data=data, headers={"Content-Type": "application/json"}) as response:
        return response.status, await response.json(), dict(response.headers)


HELLO = {"code": "print('hello')", "language": "python"}
# Every field that SandboxFusion documents.
FULL = {
    "compile_timeout": 10,
    "run_timeout": 20,
    "memory_limit_MB": 512,
    "code": "print(input())\nprint(open('flag.txt').read())\nopen('out.txt', 'w').write('made')\n",
    "stdin": "typed",
    "language": "python",
    "files": {"flag.txt": base64.b64encode(b"a flag").decode(), "skipped": None},
    "fetch_files": ["out.txt", "absent.txt"],
}


def test_a_real_program_as_sandboxfusion_answers():
    async def dialogue(http, url, service):
        ok = await post(http, url, HELLO)
        failed = await post(http, url, HELLO, code="1/0")
        late = await post(http, url, HELLO, code="print('x')\nwhile True: pass", run_timeout=0.3)
        await service.sandbox.close()
        return ok, failed, late

    ok, failed, late = talk(dialogue, LocalSandbox(preload=(), timeout_s=60))
    status, reply, headers = ok
    assert status == 200 and headers["X-Sandbox-Load"] == "0 0 4"
    assert reply.pop("executor_pod_name") and reply["run_result"].pop("execution_time") > 0
    assert reply == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {"status": "Finished", "return_code": 0, "stdout": "hello\n", "stderr": ""},
        "files": {},
    }
    run = failed[1]["run_result"]
    assert failed[1]["status"] == "Failed" and run["status"] == "Finished" and run["return_code"] == 1
    assert "ZeroDivisionError" in run["stderr"]
    run = late[1]["run_result"]
    assert late[1]["status"] == "Failed" and run["status"] == "TimeLimitExceeded" and run["return_code"] is None
    assert run["stdout"] == "x\n"


def test_every_documented_field_reaches_the_sandbox():
    gate = Gate()
    assert talk(lambda http, url, _: post(http, url, FULL), gate)[0] == 200
    assert gate.options == [
        {
            "timeout_s": 20.0,
            "memory_mb": 512,
            "stdin": "typed",
            "files": {"flag.txt": b"a flag"},
            "fetch_files": ("out.txt", "absent.txt"),
        }
    ]


@pytest.mark.parametrize(
    ("result", "service", "ending", "code"),
    [
        (Result(Status.SUCCESS, "", "", "1", 0.1, 0), "Success", "Finished", 0),
        (Result(Status.OUTPUT, "", "", None, 0.1, 0), "Success", "Finished", 0),
        (Result(Status.OUTPUT, "", "stopped", None, 0.1), "Failed", "Finished", -9),
        (Result(Status.ERROR, "", "E", None, 0.1, 3), "Failed", "Finished", 3),
        (Result(Status.ERROR, "", "E", None, 0.1, 0), "Failed", "Finished", 1),
        (Result(Status.MEMORY, "", "MemoryError: x", None, 0.1), "Failed", "Finished", 1),
        (Result(Status.KILLED, "", "k", None, 0.1), "Failed", "Finished", -9),
        (Result(Status.TIMEOUT, "", "t", None, 0.1), "Failed", "TimeLimitExceeded", None),
    ],
)
def test_every_ending_in_both_clients(result, service, ending, code):
    reply = schema.reply_of(result, display=True)
    assert (reply["status"], reply["run_result"]["status"], reply["run_result"]["return_code"]) == (
        service,
        ending,
        code,
    )
    assert schema.read_reply(json.loads(json.dumps(reply))).status is result.status
    foreign = FusionSandbox(url="http://x")._result(
        schema.reply_of(result, display=False), {"marker": "m", "run_timeout": 1, "memory_limit_MB": 1}, 0.0
    )
    known = {("Success", Status.OUTPUT): Status.SUCCESS, ("Failed", Status.OUTPUT): Status.KILLED}
    assert foreign.status is known.get((service, result.status), result.status)


def test_files_and_value_come_back_whole():
    result = Result(Status.SUCCESS, "é\n", "w", "'v'", 0.5, 0, {"a/b": bytes(range(256))})
    assert schema.read_reply(json.loads(json.dumps(schema.reply_of(result, True)))) == result
    broken = schema.reply_of(Result(Status.SANDBOX, "", "no room\n", None, 0.0), True)
    assert broken["status"] == "SandboxError" and broken["message"] == "no room" and broken["run_result"] is None
    assert schema.read_reply(broken).status is Status.SANDBOX


@pytest.mark.parametrize("client", [FusionSandbox, PoolSandbox])
def test_our_clients_against_our_service(client):
    async def dialogue(http, url, service):
        box = client(url=url) if client is FusionSandbox else client(hosts=[url])
        runs = [
            box.run(code, timeout_s=30) for code in ("print('a')\nx = 20\nx + 1", "x = 1\nx / 0", "raise SystemExit(3)")
        ]
        results = await asyncio.gather(*runs)
        await service.sandbox.close()
        return results

    shown, failed, left = talk(dialogue, LocalSandbox(preload=(), timeout_s=60))
    assert (shown.status, shown.stdout, shown.value) == (Status.SUCCESS, "a\n", "21")
    assert failed.status is Status.ERROR and "line 2" in failed.stderr and failed.value is None
    assert left.status is Status.ERROR


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "the whole is [], it should be a valid dictionary"),
        (b"\xff\xfe", "not JSON"),
        ({"language": "python"}, "code is missing"),
        ({"code": "1"}, "language is missing"),
        (HELLO | {"code": 7}, "code is 7, it should be an instance of str"),
        (HELLO | {"run_timeout": "long"}, "run_timeout is 'long', it should be a valid number"),
        (HELLO | {"run_timeout": True}, "run_timeout is True, it should be a valid number"),
        (HELLO | {"run_timeout": 61}, "at most 60 s"),
        (HELLO | {"run_timeout": 0}, "run_timeout is 0, it should be greater than 0"),
        (HELLO | {"memory_limit_MB": 4096}, "at most 1024 MB"),
        (HELLO | {"files": {"a": "%"}}, "files.a is '%': "),
        (HELLO | {"files": []}, "files is [], it should be a valid dictionary"),
        (HELLO | {"fetch_files": [1]}, "fetch_files.0 is 1, it should be a valid string"),
        (b'{"code": "1", "language": "python", "run_timeout": NaN}', "run_timeout is nan"),
    ],
)
def test_a_wrong_request_is_refused_in_one_sentence(body, words):
    gate = Gate()
    status, reply, _ = talk(lambda http, url, _: post(http, url, body), gate)
    assert status == 422 and words in reply["detail"] and reply["detail"].endswith(".")
    assert "Traceback" not in reply["detail"] and "\n" not in reply["detail"] and gate.order == []


def test_a_body_too_large_and_a_wrong_path():
    async def dialogue(http, url, _):
        large = await post(http, url, HELLO, stdin="x" * 5000)
        async with http.get(f"{url}/run_code") as response:
            return large, (response.status, await response.json())

    large, wrong = talk(dialogue, max_body_bytes=4000)
    assert large[0] == 413 and "4000 bytes" in large[1]["detail"]
    assert wrong[0] == 405 and "GET /run_code" in wrong[1]["detail"]


def test_another_language_is_a_sandbox_error_that_names_ours():
    status, reply, _ = talk(lambda http, url, _: post(http, url, HELLO, language="cpp"))
    assert status == 200 and reply["status"] == "SandboxError"
    assert "'cpp'" in reply["message"] and "supported: python" in reply["message"]


def test_a_bug_in_the_sandbox_shows_no_traceback():
    class Broken(Gate):
        async def run(self, code, **options):
            raise RuntimeError("secret path")

    status, reply, _ = talk(lambda http, url, _: post(http, url, HELLO), Broken())
    assert status == 500 and "RuntimeError" in reply["detail"] and "secret" not in json.dumps(reply)


def test_a_full_queue_says_when_to_come_back_and_keeps_trajectories_apart():
    async def dialogue(http, url, service):
        asked = []
        for key, code in [("a", "a0"), ("a", "a1"), ("a", "a2"), ("b", "b0")]:
            asked.append(asyncio.create_task(post(http, url, HELLO, code=code, trajectory=key)))
            await until(lambda: service.queue.running + service.queue.waiting == len(asked))
        refused = await post(http, url, HELLO, trajectory="c")
        gate.open.set()
        return refused, await asyncio.gather(*asked)

    gate = Gate(is_open=False)
    (status, reply, headers), answers = talk(dialogue, gate, slots=1, max_waiting=3)
    assert status == 429 and int(headers["Retry-After"]) >= 1 and "3 runs wait" in reply["detail"]
    assert [answer[0] for answer in answers] == [200] * 4
    assert gate.order == ["a0", "b0", "a1", "a2"]


def test_a_repeated_request_id_runs_once():
    async def dialogue(http, url, service):
        first = asyncio.create_task(post(http, url, HELLO, request_id="r"))
        await until(lambda: gate.order)
        second = asyncio.create_task(post(http, url, HELLO, request_id="r"))
        await until(lambda: service.runs.joined)
        gate.open.set()
        return await first, await second, await post(http, url, HELLO, request_id="r")

    gate = Gate(is_open=False)
    replies = [reply for _, reply, _ in talk(dialogue, gate)]
    assert replies[0] == replies[1] == replies[2] and len(gate.order) == 1


def test_draining_finishes_what_runs_and_takes_no_more():
    async def dialogue(http, url, service):
        running = asyncio.create_task(post(http, url, HELLO, request_id="r"))
        await until(lambda: gate.order)
        drain = asyncio.create_task(service.drain())
        await asyncio.sleep(0)
        refused = await post(http, url, HELLO)
        joined = asyncio.create_task(post(http, url, HELLO, request_id="r"))
        await until(lambda: service.runs.joined)
        async with http.get(f"{url}/health") as response:
            health = response.status, (await response.json())["draining"]
        assert not drain.done()
        gate.open.set()
        await drain
        return refused, health, (await running)[0], (await joined)[0]

    gate = Gate(is_open=False)
    (status, reply, headers), health, *served_codes = talk(dialogue, gate)
    assert status == 503 and headers["Retry-After"] and "shutting down" in reply["detail"]
    assert health == (503, True) and served_codes == [200, 200] and len(gate.order) == 1


def test_a_client_that_hangs_up_stops_its_run():
    class Noting(Gate):
        async def run(self, code, **options):
            try:
                return await super().run(code, **options)
            except asyncio.CancelledError:
                self.ended.append("stopped")
                raise

    async def dialogue(http, url, service):
        task = asyncio.create_task(post(http, url, HELLO))
        await until(lambda: gate.order)
        task.cancel()
        await asyncio.wait_for(until(lambda: gate.ended), 30)
        return gate.ended

    gate = Noting(is_open=False)
    assert talk(dialogue, gate) == ["stopped"]


def test_health_metrics_and_the_first_page():
    async def dialogue(http, url, service):
        await post(http, url, HELLO)
        await post(http, url, b"{")
        texts = []
        for path in ("/health", "/metrics", "/", "/v1/ping"):
            async with http.get(url + path) as response:
                texts.append(await response.text())
        return texts

    health, metrics, about, ping = talk(dialogue, level="namespaces", slots=3)
    state = json.loads(health)
    assert {name: state[name] for name in ("level", "running", "queued", "slots", "draining")} == {
        "level": "namespaces", "running": 0, "queued": 0, "slots": 3, "draining": False,
    }  # fmt: skip
    for line in ('runs_total{status="success"} 1.0', 'refused_total{reason="invalid"} 1.0', "run_seconds_count 1.0"):
        assert f"retool_sandbox_{line}\n" in metrics
    assert about.count("\n") == 1 and "namespaces" in about and ping == '"pong"'
