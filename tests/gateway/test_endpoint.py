"""The endpoint of an episode over HTTP: OpenAI's own client, refusals, retries, limits, strangers."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from random_episodes import EOS, FORMATS, TOKENIZER, encode

from retool_mcore.data.formats import TOOL
from retool_mcore.gateway import endpoint as module
from retool_mcore.gateway.endpoint import Endpoint, EpisodeLimits, Opened
from retool_mcore.gateway.segments import segments
from retool_mcore.gateway.tree import Session
from retool_mcore.rollout.episode import Generation, Limits

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
CALL = '<tool_call>{"name": "code_interpreter", "arguments": {"code": "print(1 + 2)"}}</tool_call>'
LIMITS = Limits(max_turns=50, max_turn_tokens=400, max_response_tokens=4000, max_observation_tokens=200)


class Engine:
    """Samples the texts in order, then `Reply N.`; a turn waits for `gate` where it is closed."""

    def __init__(self, texts=()):
        self.texts, self.asked = list(texts), []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error = None

    async def __call__(self, ids, max_tokens, *, number, branch, stop):
        count = len(self.asked)
        self.asked.append((list(ids), number, branch))
        await self.gate.wait()
        if self.error:
            raise self.error
        text = self.texts[count] if count < len(self.texts) else f"Reply {count}."
        ids = [*encode(text), EOS][:max_tokens]
        return Generation(ids, [-0.5] * len(ids), [(1, len(ids))])


def opened(name="000001-000000-0", engine=None, limits=LIMITS, **bounds):
    session = Session(FORMATS["hermes"], TOKENIZER, limits, 8000)
    return Opened(name, session, engine or Engine(), EpisodeLimits(**bounds))


def run(test):
    """Run a coroutine function with an endpoint and an HTTP client."""

    async def whole():
        endpoint = Endpoint()
        try:
            async with aiohttp.ClientSession() as client:
                await test(endpoint, client)
        finally:
            await endpoint.stop()

    asyncio.run(whole())


def chat(messages=QUESTION, **options):
    return {"model": "policy", "messages": messages, **options}


@asynccontextmanager
async def post(client, url, episode, body=None, **options):
    headers = {"Authorization": f"Bearer {episode.key}"} | options.pop("headers", {})
    options = options or {"json": chat() if body is None else body}
    async with client.post(f"{url}/chat/completions", headers=headers, **options) as response:
        yield response


async def status(client, url, episode, body=None, **options):
    async with post(client, url, episode, body, **options) as response:
        content = json.loads(await response.text())
        return response.status, content.get("error", {}).get("code"), content


def test_openais_client_with_tools_and_a_stream():
    async def test(endpoint, _):
        one = opened(engine=Engine(["Let me see. " + CALL, "It is 3.", "Yes."]))
        async with endpoint.episode(one) as url:
            client = openai.AsyncOpenAI(base_url=url, api_key=one.key)
            assert [model.id for model in (await client.models.list()).data] == ["policy"]
            first = await client.chat.completions.create(model="any", messages=QUESTION, tools=[TOOL], temperature=0.1)
            choice = first.choices[0]
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see. ")
            call = choice.message.tool_calls[0]
            assert json.loads(call.function.arguments) == {"code": "print(1 + 2)"}
            messages = [*QUESTION, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "3"}]
            second = await client.chat.completions.create(model="any", messages=messages, tools=[TOOL], logprobs=True)
            assert second.choices[0].message.content == "It is 3." and second.choices[0].finish_reason == "stop"
            assert len(second.choices[0].logprobs.content) == second.usage.completion_tokens
            messages += [second.choices[0].message, {"role": "user", "content": "Sure?"}]
            stream = await client.chat.completions.create(
                model="any", messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Yes."
            assert chunks[-1].usage.prompt_tokens == len(one.session.nodes[2].prompt.ids)
        (made,) = segments(one.session).trajectories
        assert made.turns == 3 and not segments(one.session).lost and one.overridden == {"temperature": 1}

    run(test)


def test_refusals():
    async def test(endpoint, client):
        one, other = opened(), opened("000001-000000-1")
        async with endpoint.episode(one) as url, endpoint.episode(other) as other_url:

            async def refused(body=None, to=url, key=one.key, **options):
                headers = {"Authorization": f"Bearer {key}"} | options.pop("headers", {})
                return (await status(client, to, one, body, headers=headers, **options))[:2]

            assert await refused(key="") == (401, "invalid_api_key")
            assert await refused(key=one.key[:-1]) == (401, "invalid_api_key")
            assert await refused(headers={"Authorization": f"Basic {one.key}"}) == (401, "invalid_api_key")
            assert await refused(to=other_url) == (404, "not_found"), "a key opens its own episode only"
            assert await refused(to=url.replace("000001-000000-0", "guessed")) == (404, "not_found")
            assert await refused(key=other.key) == (404, "not_found")
            assert await refused(headers={"Origin": "http://evil"}) == (403, "forbidden")
            assert await refused(data=b"{", headers={"Content-Type": "text/plain"}) == (415, "unsupported_media_type")
            json_type = {"Content-Type": "application/json"}
            bodies = [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": 1, "a": 2}', b'{"n": NaN}', b'{"x": "\\ud800"}']
            for data in bodies:
                assert await refused(data=data, headers=json_type) == (400, "invalid_request"), data[:20]
            assert await refused(data=b" " * (17 * 2**20), headers=json_type) == (413, "too_large")
            assert await refused(chat(n=2)) == (400, "invalid_request")
            assert await refused(chat(n=10**9)) == (400, "invalid_request")
            assert await refused(chat(logit_bias={"5": 100})) == (400, "unsupported_parameter")
            assert await refused(chat(tool_choice="required", tools=[TOOL])) == (400, "unsupported_parameter")
            assert await refused(chat([])) == (400, "invalid_request")
            long = chat([{"role": "user", "content": "x" * 20_000}])
            assert await refused(long) == (400, "context_length_exceeded")
            async with client.get(f"{url}/chat/completions") as response:
                assert (response.status, (await response.json())["error"]["code"]) == (405, "method_not_allowed")
            async with client.post(f"{url}/completions", json={}) as response:
                assert response.status == 404
            assert not one.session.nodes and not one.generate.asked, "nothing was sampled for any of them"
            assert (await status(client, url, one))[0] == 200

        assert (await status(client, url, one))[:2] == (410, "episode_over"), "calls after the end"
        async with post(client, url, one) as response:
            assert response.headers["x-should-retry"] == "false"

    run(test)


@pytest.mark.parametrize(
    "bounds, finish", [({"turns": 2}, "max_turns"), ({"tokens": 5}, "length"), ({"segments": 1}, "segments")]
)
def test_a_limit_ends_the_episode(bounds, finish):
    async def test(endpoint, client):
        one = opened(**bounds)
        async with endpoint.episode(one) as url:
            codes = []
            for number in range(4):
                found, code, content = await status(client, url, one, chat([{"role": "user", "content": f"{number}"}]))
                codes.append(found)
            assert codes[0] == 200 and codes[-1] == 410 and one.finish == finish
            assert finish in content["error"]["message"]
            with pytest.raises(openai.APIStatusError):  # and OpenAI's client does not try again
                library = openai.AsyncOpenAI(base_url=url, api_key=one.key)
                await library.chat.completions.create(model="x", messages=QUESTION)
            assert one.requests == 5

    run(test)


def test_a_client_that_asks_again_gets_the_same_turn():
    async def test(endpoint, client):
        one = opened()
        async with endpoint.episode(one) as url:
            # It hung up while the turn was sampled.
            one.generate.gate.clear()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(status(client, url, one), 0.3)
            one.generate.gate.set()
            _, _, found = await status(client, url, one)
            assert found["choices"][0]["message"]["content"] == "Reply 0." and len(one.generate.asked) == 1
            # It says that it asks again, though its reply was sent.
            _, _, again = await status(client, url, one, headers={"x-stainless-retry-count": "1"})
            assert again["id"] == found["id"] and len(one.generate.asked) == 1 and one.retries == 2
            # It samples anew.
            _, _, other = await status(client, url, one)
            assert other["id"] != found["id"] and len(one.generate.asked) == 2
            # Two at once are two samples.
            one.generate.gate.clear()
            both = [asyncio.ensure_future(status(client, url, one)) for _ in range(2)]
            await asyncio.sleep(0.2)
            one.generate.gate.set()
            assert len({(await each)[2]["id"] for each in both}) == 2
            # A forged header of another conversation finds nothing.
            body = chat([{"role": "user", "content": "new"}])
            assert (await status(client, url, one, body, headers={"x-stainless-retry-count": "9"}))[0] == 200
        assert segments(one.session).lost == 0

    run(test)


def test_the_engines_error_ends_the_episode_and_commits_nothing():
    async def test(endpoint, client):
        one = opened()
        one.generate.error = RuntimeError("the engine is gone")
        async with endpoint.episode(one) as url:
            for stream in (False, True):
                assert (await status(client, url, one, chat(stream=stream)))[:2] == (500, "engine_error")
            assert one.failure is one.generate.error and not one.session.nodes

    run(test)


def test_requests_beyond_the_queue_are_sent_away(monkeypatch):
    async def test(endpoint, client):
        one = opened(turns=1000)
        one.queue = module.FairQueue(2, 3)
        one.generate.gate.clear()
        async with endpoint.episode(one) as url:
            bodies = [chat([{"role": "user", "content": str(number)}]) for number in range(8)]
            tasks = [asyncio.ensure_future(status(client, url, one, body)) for body in bodies]
            await asyncio.sleep(0.5)
            assert len(one.generate.asked) == 2
            one.generate.gate.set()
            codes = [(await task)[0] for task in tasks]
            assert sorted(codes) == [200] * 5 + [429] * 3

    run(test)


def test_a_stream_is_kept_alive_and_the_end_closes_it(monkeypatch):
    monkeypatch.setattr(module, "KEEPALIVE_S", 0.05)

    async def test(endpoint, client):
        one = opened()
        one.generate.gate.clear()
        async with endpoint.episode(one) as url:
            asyncio.get_running_loop().call_later(0.4, one.generate.gate.set)
            async with post(client, url, one, chat(stream=True)) as response:
                text = await response.text()
            assert text.startswith(": keepalive\n: keepalive\n") and text.endswith("data: [DONE]\n\n")
            one.generate.gate.clear()
            asyncio.get_running_loop().call_later(0.2, one.close)
            async with post(client, url, one, chat(stream=True)) as response:
                text = await response.text()
            assert '"episode_over"' in text
        assert len(one.session.nodes) == 1

    run(test)
