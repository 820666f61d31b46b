"""The process of `retool serve` from start to drained end; the engine is played, the sandbox is real."""

import asyncio
import os
import re
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from aiohttp import web
from omegaconf import open_dict
from openai import OpenAI

from retool_mcore.cli.chat import chat_config
from retool_mcore.data.policy_format import load_format
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.errors import UserError
from retool_mcore.gateway.answer import Piece, Read
from retool_mcore.train import serve

PROGRAM = "<code>\nprint(6*7)\n</code>"


def fake_engine(fmt):
    """The module of the engine, which writes a program and then its output; its first request stops the server."""

    async def sample(ids, params, grown):
        text = "It is 42." if "<interpreter>\n42" in fmt.decode(ids) else PROGRAM
        if text == PROGRAM:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.5)
        new = fmt.encode(text) + ([fmt.eos_id] if text != PROGRAM else [])
        grown(Piece(new, [-0.5] * len(new)))
        return Read()

    made = SimpleNamespace(errored=False, shutdown=lambda: None)
    return SimpleNamespace(build_engine=lambda config: made, sampled=lambda engine: sample)


@pytest.fixture
def config(tmp_path):
    model = make_tiny_model(tmp_path / "model", seed=1)
    config = chat_config(model, ["rollout.format=text", f"runs_dir={tmp_path}"])
    made = {"tools": "server", "host": "127.0.0.1", "port": 0, "raw": False, "context": None, "timeout_s": 30}
    with open_dict(config):
        config.serve = made
    return config


@pytest.mark.timeout(200)
def test_it_answers_with_a_program_and_drains(config, capsys, monkeypatch):
    fmt = load_format(config, config.policy_path)
    monkeypatch.setitem(sys.modules, "retool_mcore.backends.vllm.engine", fake_engine(fmt))
    found, printed = [], []

    def client():
        end = time.monotonic() + 60
        while not (place := re.search(r"at (http://\S+/v1)", "".join(printed))):
            printed.append(capsys.readouterr().out)
            assert time.monotonic() < end
            time.sleep(0.1)
        api = OpenAI(base_url=place[1], api_key="none", max_retries=0)
        found.append(api.chat.completions.create(model="policy", messages=[{"role": "user", "content": "6*7?"}]))

    thread = threading.Thread(target=client)
    thread.start()
    assert asyncio.run(serve.serve(config)) is True
    thread.join(10)
    assert found[0].choices[0].message.content == "It is 42.", "the request that ran when SIGTERM came"
    assert "draining: 1 requests to finish" in capsys.readouterr().out


def test_a_port_that_is_taken_is_a_sentence():
    async def start(port):
        runner = web.AppRunner(web.Application())
        await runner.setup()
        try:
            await serve.listen(runner, "127.0.0.1", port)
        finally:
            await runner.cleanup()

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UserError, match="choose another --port"):
            asyncio.run(start(other.getsockname()[1]))
