"""What a front refuses, and how it ends: strangers, sizes, time, full queues, hang-ups, draining. Raw HTTP."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from urllib.parse import urlsplit

import pytest
from played_policy import played_policy, served
from transformers import AutoTokenizer

from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.gateway import app
from retool_mcore.gateway.wire import MAX_BODY_BYTES

BODY = json.dumps({"model": "policy", "messages": [{"role": "user", "content": "hi"}]}).encode()
STREAM = json.dumps({**json.loads(BODY), "stream": True}).encode()
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model"), seed=1))


def request(url, method="POST", path="/v1/chat/completions", body=BODY, headers=JSON):
    """(status, headers, parsed body) of one request."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(method, path, body, headers)
    reply = connection.getresponse()
    content = reply.read()
    return reply.status, reply.headers, json.loads(content) if content[:1] == b"{" else content.decode()


def code_of(reply):
    status, _, content = reply
    assert set(content["error"]) == {"message", "type", "param", "code"} and content["error"]["message"]
    return status, content["error"]["code"]


def until(true, seconds=10.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_each_refusal_has_its_status_and_code(tokenizer):
    with served(played_policy(tokenizer, lambda prompt: "hello")) as (url, _):
        assert code_of(request(url, headers={**JSON, "Origin": "http://evil"})) == (403, "forbidden")
        assert code_of(request(url, headers={**JSON, "Host": "evil.example"})) == (403, "forbidden")
        assert code_of(request(url, headers={"Content-Type": "text/plain"})) == (415, "unsupported_media_type")
        assert code_of(request(url, body=b"{")) == (400, "invalid_request")
        assert code_of(request(url, path="/v1/embeddings")) == (404, "not_found")
        assert code_of(request(url, "GET", body=None)) == (405, "method_not_allowed")
        assert code_of(request(url, "GET", "/v1/models/other", None)) == (404, "model_not_found")
        assert code_of(request(url, body=b" " * (MAX_BODY_BYTES + 1))) == (413, "request_too_large")
        assert request(url)[0] == 200


@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer wrong", "Basic right", "Bearer right right", "Bearer \xff"]
)
def test_without_the_key_only_the_health_is_seen(tokenizer, shown):
    headers = JSON if shown is None else {**JSON, "Authorization": shown.encode("latin-1")}
    with served(played_policy(tokenizer, lambda prompt: "hello"), key="right") as (url, _):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/metrics")):
            assert code_of(request(url, method, path, headers=headers)) == (401, "invalid_api_key")
        assert request(url, "GET", "/health", headers=headers)[0] == 200
        other = {**JSON, "Authorization": "bearer right", "Host": "any.name"}
        assert request(url, headers=other)[0] == 200


def test_a_request_has_only_so_much_time(tokenizer):
    policy = played_policy(tokenizer, lambda prompt: "x" * 300, pause_s=0.05)
    with served(policy, timeout_s=0.5) as (url, _):
        reply = request(url)
        assert code_of(reply) == (504, "timeout") and reply[1]["x-should-retry"] == "false"
        assert '"code": "timeout"' in request(url, body=STREAM)[2] and policy.engine.given_up == 2


def test_what_does_not_fit_into_the_queue_is_asked_to_come_back(tokenizer):
    policy = played_policy(tokenizer, lambda prompt: "x" * 100, pause_s=0.02)
    with served(policy, places=1, max_waiting=1) as (url, front):
        threads = [threading.Thread(target=request, args=(url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: front.queue.waiting == 1)
        reply = request(url)
        assert code_of(reply) == (429, "too_many_requests") and reply[1]["Retry-After"]
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("body", [BODY, STREAM])
def test_a_client_that_hangs_up_leaves_nothing_in_the_engine(tokenizer, body):
    policy = played_policy(tokenizer, lambda prompt: "x" * 300, pause_s=0.05)
    with served(policy) as (url, front):
        place = urlsplit(url)
        with socket.create_connection((place.hostname, place.port)) as connection:
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            until(lambda: policy.engine.running == 1)
        until(lambda: policy.engine.running == 0, 5)
        until(lambda: front.active == 0, 5)
        assert policy.engine.given_up == 1 and front.queue.running == 0


def test_draining_lets_what_runs_finish_and_takes_nothing_new(tokenizer):
    policy = played_policy(tokenizer, lambda prompt: "x" * 50, pause_s=0.02)
    with served(policy) as (url, front):
        found = []
        thread = threading.Thread(target=lambda: found.append(request(url)))
        thread.start()
        until(lambda: policy.engine.running == 1)
        drained = asyncio.run_coroutine_threadsafe(front.drain(), front.loop)
        until(lambda: front.draining)
        assert code_of(request(url)) == (503, "draining")
        status, _, health = request(url, "GET", "/health", None)
        assert (status, health["status"]) == (503, "draining")
        drained.result(10)
        thread.join()
        assert found[0][0] == 200


def test_the_health_fails_with_the_engine(tokenizer):
    with served(played_policy(tokenizer, [RuntimeError("x")]), alive=lambda: False) as (url, front):
        assert code_of(request(url)) == (500, "engine_error")
        assert request(url, "GET", "/health", None)[0] == 503 and front.dead.is_set()


def test_a_silent_stream_is_kept_alive(tokenizer, monkeypatch):
    monkeypatch.setattr(app, "KEEPALIVE_S", 0.05)
    with served(played_policy(tokenizer, lambda prompt: "hi", pause_s=0.3)) as (url, _):
        text = request(url, body=STREAM)[2]
    assert text.count(": keepalive\n") >= 2 and text.endswith("data: [DONE]\n\n") and ": keepalive\n\n" not in text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert (
        events[0]["choices"][0]["delta"]["role"] == "assistant" and events[-1]["choices"][0]["finish_reason"] == "stop"
    )


def test_metrics_count_requests_tokens_and_errors(tokenizer):
    with served(played_policy(tokenizer, lambda prompt: "hello")) as (url, _):
        request(url, body=json.dumps({**json.loads(BODY), "store": True, "mine": 1}).encode())
        request(url, body=b"{")
        text = request(url, "GET", "/metrics", None)[2]
    for line in (
        'replies_total{route="/v1/chat/completions",status="200"} 1.0', 'errors_total{code="invalid_request"} 1.0',
        'ignored_keys_total{key="other"} 1.0', 'ignored_keys_total{key="store"} 1.0', 'tokens_total{kind="cached"} 3.0',
        "running 0.0", "waiting 0.0",
    ):  # fmt: skip
        assert f"retool_serve_{line}" in text
    assert float(re.search(r'tokens_total{kind="sampled"} (\S+)', text)[1]) > 1
