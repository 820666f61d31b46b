"""A small OpenAI-compatible server in a thread, which replies with recorded texts and counts its calls.

With `upstream` it stands before a real server: each request goes there and back, and the recorded text takes the place
of the reply's; whatever else is in the reply (its tokens) is the real server's.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager

from aiohttp import ClientSession, web

MODEL = "recorded"


class Double:
    """`reply(content)` gives the text for a user message. `failures`: HTTP statuses for the next calls, first to last.
    `structured`: whether response_format is accepted. `raw`: sent in place of every reply, as it is."""

    def __init__(self, reply: Callable[[str], str], upstream: str = ""):
        self.upstream = upstream
        self.raw = b""
        self.reply = reply
        self.calls: Counter[str] = Counter()
        self.failures: list[int] = []
        self.structured = True
        self.finish = "stop"
        self.formats: list[dict | None] = []
        self.url = ""

    async def models(self, request: web.Request) -> web.Response:
        if self.upstream:
            async with ClientSession() as session, session.get(f"{self.upstream}/models") as answer:
                return web.json_response(await answer.json())
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "created": 0}]})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.failures:
            return web.json_response({"error": {"message": "told to fail"}}, status=self.failures.pop(0))
        if body.get("response_format") and not self.structured:
            return web.json_response({"error": {"message": "no response_format here"}}, status=400)
        self.formats.append(body.get("response_format"))
        content = body["messages"][-1]["content"]
        self.calls[content + str(body["seed"])] += 1
        if self.raw:
            return web.Response(body=self.raw, content_type="application/json")
        if self.upstream:
            return await self._forward(body, self.reply(content))
        message = {"role": "assistant", "content": self.reply(content)}
        choice = {"index": 0, "message": message, "finish_reason": self.finish}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        reply = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
        return web.json_response(reply | {"usage": usage})

    async def _forward(self, body: dict, text: str) -> web.Response:
        async with ClientSession() as session, session.post(f"{self.upstream}/chat/completions", json=body) as answer:
            reply = await answer.json()
        if answer.status == 200:
            reply["choices"][0]["finish_reason"] = self.finish
            reply["choices"][0]["message"]["content"] = text
        return web.json_response(reply, status=answer.status)


@contextmanager
def serving(reply: Callable[[str], str], upstream: str = ""):
    """A started `Double`; its thread ends with the context."""
    double = Double(reply, upstream)
    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        app = web.Application(client_max_size=16 * 2**20)
        app.add_routes([web.get("/v1/models", double.models), web.post("/v1/chat/completions", double.chat)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        double.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield double
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def recorded_replies(rows) -> Callable[[str], str]:
    """A reply to both kinds of request about `rows` (recorded_rewrites.Recorded): the rewrite, or the judge's JSON."""
    by_problem = {row.problem: row for row in rows}

    def reply(content: str) -> str:
        row = next(row for problem, row in by_problem.items() if problem in content)
        return row.rewrite if "<interpreter>" in content else f'{{"answer": "{row.answer}"}}'

    return reply
