"""The HTTP application of `retool serve`: /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics.

A client that hangs up cancels its handler, which takes its choices out of the engine and its programs out of the
sandbox.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from retool_mcore.errors import UserError
from retool_mcore.gateway.answer import Answer, Policy
from retool_mcore.gateway.completion import Completion
from retool_mcore.gateway.memory import Memory, listed_tools
from retool_mcore.gateway.metrics import FrontMetrics
from retool_mcore.gateway.refusal import WireError
from retool_mcore.gateway.replies import (
    DONE,
    KEEPALIVE,
    ChatChunks,
    Choice,
    Usage,
    chat_reply,
    completion_choice,
    completion_reply,
    error_event,
    event,
    models_reply,
)
from retool_mcore.gateway.requests import check_json, problem, shows, wrong_key
from retool_mcore.gateway.wire import (
    MAX_BODY_BYTES,
    ChatRequest,
    CompletionRequest,
    Rules,
    parse_chat,
    parse_completion,
    read_body,
)
from retool_mcore.sandbox.concurrency import FairQueue, QueueFull
from retool_mcore.sandbox.service.app import BODY_S, foreign

MODEL = "policy"
MAX_N = 64
MAX_LOGPROBS = 20  # vLLM's
MAX_WAITING = 1024  # choices
KEEPALIVE_S = 10.0
OPEN_PATHS = ("/health",)
log = logging.getLogger(__name__)


class Front:
    """The routes over one policy.

    Args:
        places: choices at work at once.
        key: that clients show as `Authorization: Bearer KEY`; None: this machine's users need none.
        timeout_s: of a request, the wait for a place included.
        alive: whether the engine works.
    """

    def __init__(
        self, policy: Policy, *, places: int, key: str | None, timeout_s: float, max_waiting: int = MAX_WAITING,
        alive: Callable[[], bool] = lambda: True,
    ):  # fmt: skip
        self.policy, self.key, self.timeout_s, self.alive = policy, key, timeout_s, alive
        self.rules = Rules(MODEL, max_n=MAX_N, sampling=True, max_logprobs=MAX_LOGPROBS)
        self.queue = FairQueue(places, max_waiting)
        self.metrics = FrontMetrics(self.queue)
        self.memory = Memory(policy.fmt, policy.limits, policy.context, policy.prompt)
        self.draining, self.active = False, 0
        self.dead = asyncio.Event()  # the engine has failed

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._explain])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name}", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def drain(self) -> None:
        """Take no new requests, and wait for those that were taken."""
        self.draining = True
        while self.active:
            await asyncio.sleep(0.02)

    @web.middleware
    async def _explain(self, request: web.Request, handler) -> web.StreamResponse:
        """Whatever goes wrong is one sentence in OpenAI's form."""
        started = time.monotonic()
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "other"
        try:
            self._check(request)
            response = await handler(request)
        except web.HTTPException as error:
            response = self._problem(_http_error(request, error))
            response.headers.update({name: value for name, value in error.headers.items() if name == "Allow"})
        except Exception as error:
            response = self._problem(self.wire_error(error))
        self.metrics.ended(route, response.status, time.monotonic() - started)
        return response

    def _problem(self, error: WireError) -> web.Response:
        self.metrics.failed(error.code)
        return problem(error)

    def wire_error(self, error: BaseException) -> WireError:
        """Return what the client reads of an error; an unforeseen one is logged."""
        if isinstance(error, WireError):
            return error
        if isinstance(error, QueueFull):
            return WireError(429, "too_many_requests", f"{self.queue.waiting} choices wait already.")
        if isinstance(error, TimeoutError):
            return WireError(504, "timeout", f"There was no answer within {self.timeout_s:g} s.", final=True)
        if isinstance(error, UserError):
            return WireError(500, "server_misconfigured", str(error), final=True)
        log.error("a request failed", exc_info=error)
        if not self.alive():
            self.dead.set()
        return WireError(500, "engine_error", f"The server failed ({type(error).__name__}); its log says more.")

    def _check(self, request: web.Request) -> None:
        if reason := foreign(request, named=self.key is None):
            raise WireError(403, "forbidden", f"{reason[0].upper()}{reason[1:]}.")
        if self.key is not None and request.path not in OPEN_PATHS and not shows(request, self.key):
            raise wrong_key()
        if request.method == "POST":
            check_json(request)
        if request.method == "POST" and self.draining:
            raise WireError(503, "draining", "The server is shutting down and takes no new requests.")

    async def _body(self, request: web.Request) -> dict:
        try:
            async with asyncio.timeout(BODY_S):
                return read_body(await request.read())
        except TimeoutError:
            raise WireError(408, "slow_body", f"The body did not come within {BODY_S:g} s.") from None

    # --- chat

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        asked = parse_chat(await self._body(request), self.rules)
        self.metrics.ignored(asked.ignored)
        async with self._taken():
            ids = await asyncio.to_thread(self._prompt, asked)
            name, seed = secrets.token_hex(8), _seed(asked)
            if not asked.stream:
                answers = [self._answer(asked, ids, seed, f"{name}_{index}") for index in range(asked.n)]
                choices = await self._all([self._made(answer, asked) for answer in answers], request)
                return web.json_response(chat_reply(name, MODEL, choices, self._usage(len(ids), answers)))
            chunks = ChatChunks(name, MODEL, asked.include_usage)
            return await self._stream(request, lambda put: self._chat_stream(request, asked, ids, seed, chunks, put))

    async def _chat_stream(
        self, request: web.Request, asked: ChatRequest, ids: list[int], seed: int, chunks: ChatChunks,
        put: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        name = chunks.head["id"].removeprefix("chatcmpl-")
        answers = []
        for index in range(asked.n):
            put(chunks.role(index))
            answers.append(self._answer(asked, ids, seed, f"{name}_{index}", _sender(chunks, index, put)))

        async def one(index: int) -> None:
            choice = await self._made(answers[index], asked)
            put(chunks.finish(index, choice.finish_reason, **choice.extra))

        await self._all([one(index) for index in range(asked.n)], request)
        put(chunks.usage(self._usage(len(ids), answers)))

    def _prompt(self, asked: ChatRequest) -> list[int]:
        if self.policy.tools is not None and asked.tools:
            text = "tools: this server runs the policy's own tools; `retool serve --tools client` takes a client's."
            raise WireError(400, "unsupported_parameter", text, "tools")
        ids = self.memory.prompt_ids(asked.messages, self._listed(asked))
        self._check_room(len(ids), asked)
        return ids

    def _listed(self, asked: ChatRequest) -> list[dict] | None:
        own = self.policy.tools
        return asked.tools if own is None else listed_tools(self.policy.fmt, own.schemas)

    async def _made(self, answer: Answer, asked: ChatRequest) -> Choice:
        choice = await answer.run()
        if answer.ids:
            self.memory.note(asked.messages, self._listed(asked), choice.message, answer.ids, answer.errors)
        return choice

    def _answer(self, asked: ChatRequest, ids: list[int], seed: int, name: str, send: Any = None) -> Answer:
        number = int(name.rpartition("_")[2])
        further = {"send": send} if send else {}
        return Answer(self.policy, asked, ids, seed=seed + number, name=name, **further)

    # --- completions

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        asked = parse_completion(await self._body(request), self.rules)
        self.metrics.ignored(asked.ignored)
        async with self._taken():
            prompts = await asyncio.to_thread(self._prompts, asked)
            name, seed = secrets.token_hex(8), _seed(asked)
            work = [(place * asked.n + number, ids) for place, ids in enumerate(prompts) for number in range(asked.n)]
            total = sum(map(len, prompts))
            if not asked.stream:
                made = [Completion(self.policy, asked, ids, index=index, seed=seed + index) for index, ids in work]
                choices = await self._all([one.run() for one in made], request)
                return web.json_response(completion_reply(name, MODEL, choices, self._usage(total, made)))
            return await self._stream(
                request, lambda put: self._completion_stream(request, asked, work, total, seed, name, put)
            )

    async def _completion_stream(
        self, request: web.Request, asked: CompletionRequest, work: Sequence[tuple[int, list[int]]], total: int,
        seed: int, name: str, put: Callable[[bytes], None],
    ) -> None:  # fmt: skip
        def sends(index: int) -> Callable[[str], None]:
            return lambda text: put(event(completion_reply(name, MODEL, [completion_choice(index, text, None)], None)))

        made = [
            Completion(self.policy, asked, ids, index=index, seed=seed + index, send=sends(index))
            for index, ids in work
        ]  # fmt: skip

        async def one(completion: Completion) -> None:
            put(event(completion_reply(name, MODEL, [(await completion.run()) | {"text": ""}], None)))

        await self._all([one(completion) for completion in made], request)
        if asked.include_usage:
            put(event(completion_reply(name, MODEL, [], self._usage(total, made))))

    def _prompts(self, asked: CompletionRequest) -> list[list[int]]:
        tokenizer, found = self.policy.fmt.tokenizer, []
        for prompt in asked.prompts:
            ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            if max(ids, default=0) >= len(tokenizer):
                text = f"prompt holds the token {max(ids)}: this policy has {len(tokenizer)}."
                raise WireError(400, "invalid_request", text, "prompt")
            self._check_room(len(ids), asked)
            found.append(ids)
        return found

    # --- both

    def _check_room(self, tokens: int, asked: ChatRequest | CompletionRequest) -> None:
        context, most = self.policy.context, asked.max_tokens
        if tokens >= context:
            text = (
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{tokens + (most or 1)} tokens ({tokens} in the messages, {most or 1} in the completion). "
                "Please reduce the length of the messages."
            )
            raise WireError(400, "context_length_exceeded", text, "messages")
        vocabulary = len(self.policy.fmt.tokenizer)
        if max(asked.sampling.logit_bias or [0]) >= vocabulary:
            raise WireError(400, "invalid_request", f"logit_bias: this policy has {vocabulary} tokens.", "logit_bias")

    def _usage(self, prompt_tokens: int, made: Sequence[Answer] | Sequence[Completion]) -> Usage:
        sampled, cached = sum(one.sampled for one in made), min(one.cached for one in made)
        self.metrics.tokens(prompt=prompt_tokens, cached=cached, sampled=sampled)
        for one in made:
            for step in getattr(one, "steps", ()):
                self.metrics.called(step["status"])
        return Usage(prompt_tokens, sampled, cached)

    @asynccontextmanager
    async def _taken(self) -> AsyncIterator[None]:
        """A request that draining waits for."""
        if self.queue.waiting >= (self.queue.max_waiting or 0):
            raise QueueFull
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1

    async def _all(self, work: Sequence[Coroutine], request: web.Request) -> list:
        """The results of the choices, each of which waits for a place; the first failure ends the others."""

        async def placed(one: Coroutine) -> Any:
            async with self.queue.slot(request.remote):
                return await one

        tasks = [asyncio.ensure_future(placed(one)) for one in work]
        try:
            async with asyncio.timeout(self.timeout_s):
                return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in work:
                one.close()  # of one that had no place yet

    async def _stream(
        self, request: web.Request, make: Callable[[Callable[[bytes], None]], Awaitable[None]]
    ) -> web.StreamResponse:
        """Send what `make` puts, and a line now and then while it puts nothing; an error becomes the last event."""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        events: asyncio.Queue[bytes | None] = asyncio.Queue()
        await response.prepare(request)

        async def maker() -> None:
            try:
                await make(events.put_nowait)
                events.put_nowait(DONE)
            except Exception as error:
                problem = self.wire_error(error)
                self.metrics.failed(problem.code)
                events.put_nowait(error_event(problem))
            finally:
                events.put_nowait(None)

        task = asyncio.ensure_future(maker())
        try:
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE_S):
                        content = await events.get()
                except TimeoutError:
                    content = KEEPALIVE
                if content is None:
                    break
                if content:
                    await response.write(content)
            await response.write_eof()
        except ConnectionError:
            pass  # the client has hung up
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        return response

    # --- the server

    async def _models(self, request: web.Request) -> web.Response:
        models = models_reply(MODEL, self.policy.context)
        if (name := request.match_info.get("name")) is None:
            return web.json_response(models)
        if name != MODEL:
            raise WireError(404, "model_not_found", f"The model {name!r} does not exist: this server has {MODEL!r}.")
        return web.json_response(models["data"][0])

    async def _health(self, request: web.Request) -> web.Response:
        status = "failed" if not self.alive() else "draining" if self.draining else "ok"
        state = {"status": status, "running": self.queue.running, "waiting": self.queue.waiting}
        return web.json_response(state, status=200 if status == "ok" else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _http_error(request: web.Request, error: web.HTTPException) -> WireError:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return WireError(413, "request_too_large", f"The body has more than {MAX_BODY_BYTES} bytes.")
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(error.status, "invalid_request")
    return WireError(error.status, code, f"{request.method} {request.path}: {error.reason}.")


def _seed(asked: ChatRequest | CompletionRequest) -> int:
    """The request's seed, or one by chance; a choice adds its number, and the sum has 31 bits."""
    given = asked.sampling.seed
    return secrets.randbits(30) if given is None else given % 2**30


def _sender(chunks: ChatChunks, index: int, put: Callable[[bytes], None]) -> Callable[..., None]:
    def send(kind: str, content: Any, logprobs: list[dict] | None = None) -> None:
        if kind == "calls":
            put(chunks.calls(index, content))
        elif kind == "step":
            put(chunks.extra(index, retool_calls=[content]))
        else:
            put(chunks.text(index, content, reasoning=kind == "thought", logprobs=logprobs))

    return send
