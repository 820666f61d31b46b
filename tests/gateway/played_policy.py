"""A front whose engine is played: it writes the texts that a test gives it, token by token, over real HTTP."""

import asyncio
import threading
from contextlib import contextmanager

from aiohttp import web

from retool_mcore.data.formats import TOOL, get_format
from retool_mcore.gateway.answer import Piece, Policy, Read
from retool_mcore.gateway.app import Front
from retool_mcore.rollout.episode import Limits
from retool_mcore.tools.base import Reply, Tool
from retool_mcore.tools.toolbox import Toolbox

LIMITS = Limits(max_turns=4, max_turn_tokens=400, max_response_tokens=600, max_observation_tokens=64)


class Interpreter(Tool):
    """A code interpreter that knows one answer, or fails as the sandbox does."""

    schema = TOOL

    def __init__(self, status="success"):
        self.status = status

    async def call(self, arguments, episode):
        return Reply("42", self.status, stdout="42\n")


class PlayedEngine:
    """Writes `turns` in order, or what `turns(text of the prompt)` gives; notes requests, and which were given up."""

    def __init__(self, fmt, turns, pause_s=0.0, ends=True):
        self.fmt, self.turns, self.pause_s, self.ends = fmt, turns, pause_s, ends
        self.requests, self.given_up, self.running, self.most = [], 0, 0, 0

    async def __call__(self, ids, params, grown):
        self.requests.append((list(ids), params))
        text = self.turns(self.fmt.decode(ids)) if callable(self.turns) else self.turns.pop(0)
        if isinstance(text, Exception):
            raise text
        end = [] if not self.ends or (params.get("stop") and text.endswith("</code>")) else [self.fmt.eos_id]
        whole = (self.fmt.encode(text) + end)[: params["max_tokens"]]
        alternatives = params["logprobs"]
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for token in whole:
                await asyncio.sleep(self.pause_s)
                if grown(self.piece([token], alternatives)):
                    self.given_up += 1
                    break
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.running -= 1
        return Read(3, self.piece(ids[1:], alternatives) if "prompt_logprobs" in params else None)

    def piece(self, ids, alternatives):
        likeliest = [[(token, -0.5), ((token + 1) % 50, -1.5)][: max(1, alternatives)] for token in ids]
        return Piece(list(ids), [-0.5] * len(ids), likeliest)


def played_policy(tokenizer, turns, name="text", tools="server", status="success", **settings):
    """A policy in the format `name` and its engine. settings: of PlayedEngine or of Policy."""
    fmt = get_format(name, tokenizer)
    engine = PlayedEngine(fmt, turns, settings.pop("pause_s", 0.0), settings.pop("ends", True))
    own = Toolbox([] if name == "none" else [Interpreter(status)])
    return Policy(
        fmt, engine, own if tools == "server" else None, settings.pop("limits", LIMITS), 5.0,
        settings.pop("context", 2000), {"temperature": 1.0, "top_p": 1.0}, **settings,
    )  # fmt: skip


@contextmanager
def served(policy, **settings):
    """The base URL of a front over `policy` and the front; it runs in a thread of its own."""
    front = Front(policy, **{"places": 8, "key": None, "timeout_s": 20.0, **settings})
    loop, started = asyncio.new_event_loop(), threading.Event()
    place = {}

    async def start():
        runner = web.AppRunner(front.app(), handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        place["runner"], place["port"] = runner, runner.addresses[0][1]
        started.set()

    def run():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10)
    front.loop = loop
    try:
        yield f"http://127.0.0.1:{place['port']}", front
    finally:
        asyncio.run_coroutine_threadsafe(place["runner"].cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
