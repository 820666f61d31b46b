"""Model calls: retries, the cache, structured output, and what each failure is called."""

import asyncio

import pytest

from retool_mcore.coldstart.client import CallCache, Client
from retool_mcore.coldstart.command import serve_command
from retool_mcore.coldstart.config import Columns, Config, Judge, Model, Rewrite, Source
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.coldstart.verify import SCHEMA, check_by_judge, judged_answer
from retool_mcore.errors import UserError
from tests.support.coldstart.model_double import MODEL, serving

QUESTION = [{"role": "user", "content": "What is 6 times 7?"}]


@pytest.fixture
def double():
    with serving(lambda content: '{"answer": "42"}') as double:
        yield double


def with_client(double, tmp_path, use, **model):
    """Runs `await use(client)` with a client of `double` and a cache in tmp_path."""

    async def run():
        cache = CallCache(tmp_path / "calls.sqlite")
        client = Client(Model(**{"url": double.url, "name": MODEL, "retries": 2} | model), "judge", cache)
        try:
            return await use(client), cache.totals()
        finally:
            await client.close()
            cache.close()

    return asyncio.run(run())


def test_a_reply_is_paid_once_and_counted(double, tmp_path):
    async def twice(client):
        return [await client.ask(QUESTION) for _ in range(2)] + [await client.ask(QUESTION, sample=1)]

    (first, second, other), totals = with_client(double, tmp_path, twice, price_in=2.0, price_out=4.0)
    assert (first.cached, second.cached, other.cached) == (False, True, False)
    assert second.text == first.text and sum(double.calls.values()) == 2
    assert totals["judge"] == {
        "calls": 2,
        "retries": 0,
        "tokens_in": 20,
        "tokens_out": 10,
        "cost": pytest.approx(80e-6),
    }
    with_client(double, tmp_path, twice)
    assert sum(double.calls.values()) == 2


def test_load_is_waited_out_and_a_lasting_failure_stops_the_run(double, tmp_path):
    double.failures = [503, 429]
    reply, totals = with_client(double, tmp_path, lambda client: client.ask(QUESTION))
    assert reply.text == '{"answer": "42"}' and totals["judge"]["retries"] == 2
    double.failures = [500] * 9
    with pytest.raises(UserError, match="does not answer.*finished calls are kept"):
        with_client(double, tmp_path, lambda client: client.ask(QUESTION, sample=7))


def test_a_refused_request_drops_its_row_alone(double, tmp_path):
    double.failures = [400]
    with pytest.raises(Drop, match="refused"):
        with_client(double, tmp_path, lambda client: client.ask(QUESTION))


@pytest.mark.parametrize("raw", [b"<html>busy</html>", b'{"error": {}}', b'{"choices": []}', b"[1]"])
def test_a_reply_that_is_no_completion_drops_its_row_alone(double, tmp_path, raw):
    double.raw = raw
    with pytest.raises(Drop, match="reply is malformed"):
        with_client(double, tmp_path, lambda client: client.ask(QUESTION))
    assert sum(double.calls.values()) == 3
    double.raw = b""
    reply, totals = with_client(double, tmp_path, lambda client: client.ask(QUESTION))
    assert reply.text and totals["judge"]["calls"] == 1


def test_a_key_that_is_refused_is_called_by_its_variable(double, tmp_path, monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    double.failures = [401]
    with pytest.raises(UserError, match=r"refuses the key because none is in \$OPENAI_API_KEY"):
        with_client(double, tmp_path, lambda client: client.ask(QUESTION), api_key_env="OPENAI_API_KEY")


def test_structured_output_is_used_where_it_is_offered(double, tmp_path):
    with_client(double, tmp_path, lambda client: client.ask(QUESTION, schema=SCHEMA))
    assert double.formats[-1]["json_schema"]["schema"] == SCHEMA
    double.structured = False
    reply, _ = with_client(double, tmp_path, lambda client: client.ask(QUESTION, sample=1, schema=SCHEMA))
    assert reply.text and double.formats[-1] is None


def test_an_endpoint_is_checked_before_any_work(double, tmp_path):
    with_client(double, tmp_path, lambda client: client.check())
    with pytest.raises(UserError, match="has no model 'other'.*recorded"):
        with_client(double, tmp_path, lambda client: client.check(), name="other")
    with pytest.raises(UserError, match="does not answer"):
        with_client(double, tmp_path, lambda client: client.check(), url="http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    "text, answer",
    [
        ('{"answer": "42"}', "42"),
        ('```json\n{"answer": 42}\n```', "42"),
        ('Surely: {"answer": "\\\\frac{1}{2}"}', "\\frac{1}{2}"),
        ("So \\boxed{7}", "7"),
        ('{"answer": "4', None),
        ('{"answer": null}', None),
        ("[]", None),
        ("", None),
    ],
)
def test_a_judges_answer_is_read_or_missing(text, answer):
    assert judged_answer(text) == answer


@pytest.mark.parametrize("text, reason", [("{broken", "malformed"), ('{"answer": "41"}', "judge disagrees")])
def test_a_judge_that_errs_drops_the_row(tmp_path, text, reason):
    async def judge(client):
        return await check_by_judge(Judge(samples=2), client, Row("k", 0, "6 times 7?", "", "42"))

    with serving(lambda content: text) as double, pytest.raises(Drop, match=reason):
        with_client(double, tmp_path, judge)


def test_the_server_is_started_where_the_run_will_ask(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    rest = {"output": "out", "source": Source(path="rows.jsonl", columns=Columns(problem="problem"))}
    config = Config(rewrite=Rewrite(model=Model(url="http://127.0.0.1:8007/v1", name="org/model")), **rest)
    command = serve_command(config, "rewrite", None, ["--seed", "1"])
    assert command[0] == "env" and not any("KVCACHE" in part for part in command)
    asked = " ".join(command)
    assert "--model org/model --served-model-name org/model --host 127.0.0.1 --port 8007 --seed 1" in asked
    with pytest.raises(UserError, match="judge.model is not set"):
        serve_command(config, "judge", None, [])
    with pytest.raises(UserError, match="expected http://HOST:PORT/v1"):
        serve_command(Config(rewrite=Rewrite(model=Model(url="http://host/v1", name="m")), **rest), "rewrite", None, [])
