"""`retool serve` with the real engine, sandbox and a policy of the cold start, asked by openai-python."""

import asyncio
import re
import signal
import subprocess
import time
from contextlib import contextmanager

import pytest
from e2e_runs import COMMAND
from openai import AsyncOpenAI, OpenAI

START_S = 400
QUESTION = [{"role": "user", "content": "Compute 12*34."}]


@contextmanager
def serving(run, log, *words):
    """The base URL and the process of `retool serve RUN` with these words, at a free port."""
    with log.open("w") as file:
        process = subprocess.Popen([COMMAND, "serve", str(run), "--port", "0", *words], stdout=file, stderr=file)
    try:
        end = time.monotonic() + START_S
        while not (found := re.search(r"at (http://\S+/v1)", log.read_text())):
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.5)
        yield found[1], process
    finally:
        process.kill()
        process.wait()


def ask(client, **keys):
    return client.chat.completions.create(**{"model": "policy", "messages": QUESTION, "temperature": 0, **keys})


async def at_once(url, count):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        return await asyncio.gather(*(ask(client, temperature=1, seed=number) for number in range(count)))


@pytest.mark.e2e
@pytest.mark.nightly  # an engine outside of the template: a minute of imports
@pytest.mark.timeout(900)
def test_a_policy_is_served_whole_streamed_and_to_many(fork_of_cold_start, tmp_path):
    log = tmp_path / "serve.log"
    with serving(fork_of_cold_start / "t", log) as (url, process):
        client = OpenAI(base_url=url, api_key="none", max_retries=0)
        reply = ask(client, extra_body={"retool_calls": True}, logprobs=True, top_logprobs=2)
        choice = reply.choices[0]
        assert choice.finish_reason in ("stop", "length") and reply.usage.completion_tokens > 1
        assert len(choice.logprobs.content) == reply.usage.completion_tokens
        # Greedy: what was sampled is the likeliest.
        assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in choice.logprobs.content)
        chunks = list(ask(client, stream=True, stream_options={"include_usage": True}))
        text = "".join(part.delta.content or "" for chunk in chunks for part in chunk.choices)
        assert text == choice.message.content
        assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens

        history = [*QUESTION, choice.message.to_dict(), {"role": "user", "content": "Compute 7+8."}]
        following = ask(client, messages=history)
        assert following.usage.prompt_tokens > reply.usage.prompt_tokens + reply.usage.completion_tokens
        assert len(asyncio.run(at_once(url, 12))) == 12

        echoed = client.completions.create(
            model="policy", prompt="Compute 12*34.", echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        values = echoed.choices[0].logprobs.token_logprobs
        assert values[0] is None and all(value <= 0 for value in values[1:])
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "draining: 0 requests to finish" in log.read_text()
