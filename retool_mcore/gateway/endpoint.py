"""The HTTP server through which the agents of a rollout worker talk to the policy: a base URL and a key an episode.

Nothing is administered over HTTP: episodes are opened and closed by this process. A turn that was sampled is kept until
its client has it, so that a client that lost its connection and asks again gets the same tokens.
"""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from retool_mcore.gateway.refusal import WireError
from retool_mcore.gateway.replies import (
    KEEPALIVE,
    Choice,
    Usage,
    chat_events,
    chat_reply,
    error_event,
    models_reply,
    token_logprob,
)
from retool_mcore.gateway.requests import check_json, key_bytes, problem, shown_key, shows, wrong_key
from retool_mcore.gateway.tree import EpisodeOver, Node, Prompt, Session, TreeError
from retool_mcore.gateway.turns import Generate, take_turn
from retool_mcore.gateway.wire import MAX_BODY_BYTES, ChatRequest, Rules, parse_chat, read_body
from retool_mcore.sandbox.concurrency import FairQueue, QueueFull

BODY_S = 30.0  # for which a request's body may keep its handler waiting
KEEPALIVE_S = 10.0
CONCURRENT, WAITING = 8, 64  # requests of an episode that sample, and that wait for it
_CLOSED = 4096  # episodes that are remembered
_RULES = Rules(model=None)
_RETRIES = "x-stainless-retry-count"  # of OpenAI's libraries
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpisodeLimits:
    """turns: replies of an episode. segments: see gateway/tree.py. tokens: that the policy samples in an episode."""

    turns: int = 64
    segments: int = 16
    tokens: int = 2**31


@dataclass(eq=False)
class _Request:
    """A request that samples or has sampled; `connection` of the client that sent it last."""

    task: asyncio.Task
    connection: web.Request
    node: Node | None = None

    def waits_for_nobody(self) -> bool:
        transport = self.connection.transport
        return transport is None or transport.is_closing()


@dataclass(eq=False)
class Opened:
    """An episode that agents may talk to.

    key: what its requests show. finish: the limit that ended it, "" while none has. failure: why the engine failed.
    turns, segments: begun so far. unknown, overridden: keys of requests that had no effect, counted; refused: requests,
    by the code of their error. retries: requests that got an earlier one's turn.
    """

    name: str
    session: Session
    generate: Generate
    limits: EpisodeLimits
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    finish: str = ""
    failure: BaseException | None = None
    closed: bool = False
    unknown: Counter[str] = field(default_factory=Counter)
    overridden: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    turns: int = 0
    segments: int = 0
    retries: int = 0
    running: dict[str, _Request] = field(default_factory=dict)
    queue: FairQueue = field(default_factory=lambda: FairQueue(CONCURRENT, WAITING))

    def close(self) -> None:
        """Refuse what comes from now on, and end what samples. What is sampled so far stays."""
        self.closed = True
        for request in self.running.values():
            request.task.cancel()

    async def reply(self, asked: ChatRequest) -> Node:
        """Return the node that answers a request. Raises WireError."""
        async with self.queue.slot(self.name):
            prompt = self._begun(asked)
            self.turns, self.segments = self.turns + 1, self.segments + prompt.opens
            try:
                return await take_turn(self.session, prompt, self.generate, asked.max_tokens, asked.stop)
            except Exception as error:
                self.failure = self.failure or error
                log.error("episode %s: the engine failed", self.name, exc_info=error)
                message = f"The engine failed ({type(error).__name__}): the episode is over."
                raise WireError(500, "engine_error", message, final=True) from error

    def _begun(self, asked: ChatRequest) -> Prompt:
        self._still_open()
        try:
            prompt = self.session.prompt_for(asked.messages, asked.tools)
        except EpisodeOver as over:
            self.finish = over.finish
            raise self._over() from None
        except TreeError as error:
            raise WireError(400, error.code, str(error), "messages") from None
        if prompt.opens and self.segments >= self.limits.segments:
            self.session.abandon(prompt)
            self.finish = "segments"
            raise self._over()
        return prompt

    def _still_open(self) -> None:
        if self.closed or self.finish:
            raise self._over()
        if self.turns >= self.limits.turns:
            self.finish = "max_turns"
        elif sum(node.sampled for node in self.session.nodes) >= self.limits.tokens:
            self.finish = "length"
        if self.finish:
            raise self._over()

    def _over(self) -> WireError:
        reason = self.finish or "closed"
        return WireError(410, "episode_over", f"The episode is over ({reason}): end the agent.", final=True)


class Endpoint:
    """The server of all episodes of a process, on 127.0.0.1."""

    def __init__(self) -> None:
        self.episodes: dict[str, Opened] = {}
        self.by_key: OrderedDict[bytes, Opened] = OrderedDict()  # by the key's digest; closed ones, too
        self.port = 0
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Listen on a free port, once."""
        async with self._starting:
            if self._runner is None:
                runner = web.AppRunner(self.app(), access_log=None, handler_cancellation=False)
                await runner.setup()
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                self.port = runner.addresses[0][1]
                self._runner = runner

    async def stop(self) -> None:
        """End the server and all episodes."""
        for episode in self.episodes.values():
            episode.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._explain])
        app.router.add_post("/e/{name}/v1/chat/completions", self._chat)
        app.router.add_get("/e/{name}/v1/models", self._models)
        return app

    @asynccontextmanager
    async def episode(self, opened: Opened) -> AsyncIterator[str]:
        """Give the episode's base URL; when the body ends the episode is closed."""
        await self.start()
        if opened.name in self.episodes:
            raise ValueError(f"episode {opened.name} is open already")
        self.episodes[opened.name] = self.by_key[_digest(key_bytes(opened.key))] = opened
        while len(self.by_key) > len(self.episodes) + _CLOSED:
            oldest = next(iter(self.by_key))
            if self.by_key[oldest].closed:
                del self.by_key[oldest]
            else:
                self.by_key.move_to_end(oldest)
        try:
            yield f"http://127.0.0.1:{self.port}/e/{opened.name}/v1"
        finally:
            opened.close()
            del self.episodes[opened.name]

    @web.middleware
    async def _explain(self, request: web.Request, handler) -> web.StreamResponse:
        """Whatever goes wrong is one sentence in OpenAI's form."""
        try:
            return await handler(request)
        except WireError as error:
            return problem(error)
        except web.HTTPRequestEntityTooLarge:
            return problem(WireError(413, "too_large", f"The body has more than {MAX_BODY_BYTES:,} bytes."))
        except web.HTTPMethodNotAllowed as error:
            text = f"{request.method} is not served here: use {', '.join(sorted(error.allowed_methods))}."
            return problem(WireError(405, "method_not_allowed", text))
        except web.HTTPException as error:
            text = f"{request.method} {request.path}: {error.reason}. An episode has /chat/completions and /models."
            return problem(WireError(error.status, "not_found", text))

    def _authorised(self, request: web.Request) -> Opened:
        """The episode that the request's key opens. Raises WireError."""
        if "Origin" in request.headers:
            raise WireError(403, "forbidden", "Requests of web pages are not served.")
        # By digests: how long this takes says nothing about a key.
        episode = self.by_key.get(_digest(shown_key(request)))
        if episode is None or not shows(request, episode.key):
            raise wrong_key()
        if episode.name != request.match_info["name"]:
            raise WireError(404, "not_found", "The key is not of this episode: use the base URL that came with it.")
        return episode

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(models_reply("policy", self._authorised(request).session.context))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        episode = self._authorised(request)
        check_json(request)
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.read()
        except TimeoutError:
            raise WireError(408, "timeout", f"The body did not come within {BODY_S:g} s.") from None
        episode.requests += 1
        try:
            asked = parse_chat(read_body(data), _RULES)
            running = self._running(episode, request, hashlib.sha256(data).hexdigest(), asked)
            episode.unknown.update(asked.ignored)
            episode.overridden.update(asked.overridden)
            headers = {"x-retool-overridden": ", ".join(asked.overridden)} if asked.overridden else {}
            if asked.stream:
                return await self._stream(request, episode, running, asked, headers)
            await asyncio.wait([running.task])
            if error := _error(running.task):
                raise error
        except WireError as error:
            episode.refused[error.code] += 1
            raise
        node = running.task.result()
        response = web.json_response(_reply(episode.session, node, asked), headers=headers)
        await response.prepare(request)
        await response.write_eof()
        if not running.waits_for_nobody():
            episode.session.deliver(node)
        return response

    def _running(self, episode: Opened, request: web.Request, digest: str, asked: ChatRequest) -> _Request:
        """The turn that this request waits for: a client that asks again, because it has no reply, gets the same."""
        before = episode.running.get(digest)
        if before is not None and not (before.task.done() and (before.task.cancelled() or before.task.exception())):
            retried = request.headers.get(_RETRIES, "0") not in ("", "0")
            lost = before.waits_for_nobody() and not (before.node and before.node.delivered)
            if retried or lost:
                episode.retries += 1
                before.connection = request
                return before
        running = _Request(asyncio.ensure_future(self._answer(episode, asked)), request)
        running.task.add_done_callback(lambda task: _note(running, task))
        episode.running[digest] = running
        return running

    async def _answer(self, episode: Opened, asked: ChatRequest) -> Node:
        try:
            return await episode.reply(asked)
        except QueueFull:
            raise WireError(429, "too_many_requests", f"{WAITING} requests of this episode wait already.") from None

    async def _stream(
        self, request: web.Request, episode: Opened, running: _Request, asked: ChatRequest, headers: dict[str, str]
    ) -> web.StreamResponse:
        """The whole turn is sampled first: what a stream shows is committed."""
        response = web.StreamResponse(headers=headers | {"Content-Type": "text/event-stream"})
        # A refusal that is known at once has its status.
        done, _ = await asyncio.wait([running.task], timeout=KEEPALIVE_S)
        if done and (error := _error(running.task)):
            raise error
        await response.prepare(request)
        while not done:
            await response.write(KEEPALIVE)
            done, _ = await asyncio.wait([running.task], timeout=KEEPALIVE_S)
        if error := _error(running.task):
            await response.write(error_event(error))
            await response.write_eof()
            return response
        node = running.task.result()
        for event in chat_events(_reply(episode.session, node, asked), asked.include_usage):
            await response.write(event)
        await response.write_eof()
        if not running.waits_for_nobody():
            episode.session.deliver(node)
        return response


def _note(running: _Request, task: asyncio.Task) -> None:
    if not task.cancelled() and task.exception() is None:
        running.node = task.result()


def _error(task: asyncio.Task) -> WireError | None:
    if task.cancelled():
        return WireError(410, "episode_over", "The episode is over (closed): end the agent.", final=True)
    error = task.exception()
    if error is None or isinstance(error, WireError):
        return error
    log.error("a request failed", exc_info=error)
    return WireError(500, "engine_error", f"The endpoint failed ({type(error).__name__}).", final=True)


def _reply(session: Session, node: Node, asked: ChatRequest) -> dict:
    sampled = node.pieces[-1].turn
    logprobs = _token_logprobs(session, sampled.ids, sampled.logprobs, asked.top_logprobs) if asked.logprobs else None
    choice = Choice(node.reply.message(node.index), node.reply.finish_reason, logprobs)
    cached = len(node.base.ids) if node.base else 0
    usage = Usage(len(node.prompt.ids), node.sampled, cached)
    return chat_reply(str(node.index), asked.model, [choice], usage)


def _token_logprobs(session: Session, ids: Sequence[int], logprobs: Sequence[float] | None, top: int) -> list[dict]:
    texts = [session.fmt.decode([token]) for token in ids]
    pairs = zip(texts, logprobs or [], strict=False)
    return [token_logprob(text, value, [(text, value)] if top else ()) for text, value in pairs]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
