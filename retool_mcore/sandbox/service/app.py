"""The HTTP server: POST /run_code as SandboxFusion has it (schema.py), GET /health, /metrics and /, DELETE /session/ID.

A caller shows the service's token, as `Authorization: Bearer TOKEN` or in the address, http://retool:TOKEN@host:port,
which every HTTP client turns into a header. A service without one serves this machine's own users, and no web page.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import math
import socket
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import KW_ONLY, InitVar, dataclass

from aiohttp import BasicAuth, web

from retool_mcore.errors import UserError
from retool_mcore.ports import host_of
from retool_mcore.sandbox.base import Sandbox, Status
from retool_mcore.sandbox.concurrency import FairQueue, QueueFull
from retool_mcore.sandbox.service import schema
from retool_mcore.sandbox.service.metrics import CONTENT_TYPE, ServiceMetrics
from retool_mcore.sandbox.service.queue import Runs

MAX_BODY_BYTES = 32 * 2**20
MAX_TIMEOUT_S = 300.0
MAX_SESSIONS = 1024
BODY_S = 30.0  # for which a request's body may keep its handler waiting
HEAD_S = 10.0  # of a connection without a whole request
MAX_HEADLESS = 1024  # connections without a whole request at once; the oldest go first
OPEN_PATHS = ("/health", "/v1/ping")
log = logging.getLogger(__name__)


@dataclass(eq=False)
class Service:
    """The routes over one sandbox. `level` says how isolated its programs are, `limits` what a request may ask for."""

    sandbox: Sandbox
    _: KW_ONLY
    slots: InitVar[int]
    max_waiting: InitVar[int]
    limits: schema.Limits
    level: str = "unknown"
    max_body_bytes: int = MAX_BODY_BYTES
    token: str | None = None

    def __post_init__(self, slots: int, max_waiting: int):
        self.queue, self.runs, self.draining = FairQueue(slots, max_waiting), Runs(), False
        self.metrics = ServiceMetrics(self.queue, self.runs, self.level)
        self._started = time.time()
        self._mean_run_s = 0.1
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self.max_body_bytes, middlewares=[self._explain])
        app.router.add_post("/run_code", self._run_code)
        app.router.add_delete("/session/{id}", self._end_session)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/ping", self._ping)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/", self._about)
        return app

    async def drain(self) -> None:
        """Take no new runs, and wait for those that were taken."""
        self.draining = True
        while self.runs.active:
            await asyncio.sleep(0.02)

    @web.middleware
    async def _explain(self, request: web.Request, handler) -> web.StreamResponse:
        """Whatever goes wrong is one sentence in JSON."""
        try:
            refusal = self._refusal(request)
            if refusal:
                self.metrics.refused("stranger")
            response = refusal or await handler(request)
        except web.HTTPRequestEntityTooLarge:
            self.metrics.refused("invalid")
            response = _problem(413, f"the body has more than {self.max_body_bytes} bytes; send less, or smaller files")
        except web.HTTPException as error:
            response = _problem(error.status, f"{request.method} {request.path}: {error.reason}")
        except schema.BadRequest as error:
            self.metrics.refused("invalid")
            response = _problem(422, str(error))
        except Exception as error:
            log.exception("%s %s", request.method, request.path)
            response = _problem(500, f"the service failed ({type(error).__name__}); its log says more")
        response.headers[schema.LOAD_HEADER] = f"{self.queue.running} {self.queue.waiting} {self.queue.slots}"
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if reason := foreign(request, named=self.token is None):
            return _problem(403, reason)
        if self.token is not None and request.path not in OPEN_PATHS and not self._knows_token(request):
            message = "the service's token is missing or wrong: its address file has it, see docs/security.md"
            return _problem(401, message)
        if request.method == "POST" and request.content_type != "application/json":
            return _problem(415, f"the body is {request.content_type}; send application/json")
        return None

    def _knows_token(self, request: web.Request) -> bool:
        kind, _, credentials = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            with suppress(ValueError):
                credentials = BasicAuth.decode(f"Basic {credentials}").password
        return hmac.compare_digest(credentials.encode(), self.token.encode())

    async def _run_code(self, request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(BODY_S):
                body = await request.read()
        except TimeoutError:
            return _problem(408, f"the body did not come within {BODY_S:g} s")
        run = schema.read_request(body, self.limits)
        if run.language not in schema.LANGUAGES:
            message = f"language {run.language!r} is not supported; supported: {', '.join(schema.LANGUAGES)}"
            return web.json_response(schema.error_reply(message))
        # Who asks for a reply again has the whole request, not only a name that may be guessed.
        request_id = run.request_id and f"{run.request_id} {hashlib.sha256(body).hexdigest()}"
        if not self.runs.knows(request_id):
            if self.draining:
                self.metrics.refused("draining")
                return self._come_back("the service is shutting down and takes no new runs")
            if run.session_resume and run.session not in self._sessions:
                self.metrics.refused("session")
                return _problem(409, f"session {run.session!r} is not known here; run its programs again")
        key = run.trajectory or run.session or request.remote
        try:
            reply = await self.runs.reply(request_id, lambda: self._execute(run, key))
        except QueueFull:
            self.metrics.refused("full")
            return self._come_back(f"{self.queue.waiting} runs wait already", status=429)
        return web.Response(text=reply, content_type="application/json")

    async def _execute(self, run: schema.RunRequest, key: str) -> tuple[str, bool]:
        asked = time.monotonic()
        async with self.queue.slot(key):
            started = time.monotonic()
            if run.session:
                await self._note_session(run.session)
            try:
                result = await self.sandbox.run(run.code, **run.options())
            except UserError as error:
                return json.dumps(schema.error_reply(str(error))), False
        run_s = time.monotonic() - started
        self._mean_run_s += 0.05 * (run_s - self._mean_run_s)
        self.metrics.ended(result.status, started - asked, run_s)
        return json.dumps(schema.reply_of(result, run.display)), result.status is not Status.SANDBOX

    async def _note_session(self, session: str) -> None:
        self._sessions[session] = None
        self._sessions.move_to_end(session)
        if len(self._sessions) > MAX_SESSIONS:
            # Each is a process; its owner learns that it is not known here, and makes it again.
            await self.sandbox.end_session(self._sessions.popitem(last=False)[0])  # type: ignore[attr-defined]

    async def _end_session(self, request: web.Request) -> web.Response:
        session = request.match_info["id"]
        if session in self._sessions:
            del self._sessions[session]
            await self.sandbox.end_session(session)  # type: ignore[attr-defined]
        return web.json_response({"session": session})

    def _come_back(self, reason: str, status: int = 503) -> web.Response:
        wait_s = self._mean_run_s * self.queue.waiting / self.queue.slots
        return _problem(status, reason, {"Retry-After": str(min(30, math.ceil(wait_s)) or 1)})

    async def _health(self, request: web.Request) -> web.Response:
        state: dict = {"status": "draining" if self.draining else "ok", "level": self.level}
        state |= {"running": self.queue.running, "queued": self.queue.waiting, "slots": self.queue.slots}
        state |= {"draining": self.draining, "uptime_s": round(time.time() - self._started, 1)}
        return web.json_response(state, status=503 if self.draining else 200)

    async def _ping(self, request: web.Request) -> web.Response:
        return web.json_response("pong")

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _about(self, request: web.Request) -> web.Response:
        what = "POST /run_code runs Python as SandboxFusion does"
        return web.Response(text=f"retool_mcore sandbox service, isolation: {self.level}; {what}.\n")


def foreign(request: web.Request, *, named: bool) -> str | None:
    """Return why a request is of a web page, or with `named` of a client that calls this machine by another's name (as
    a page does that has its own name resolved to this machine); None: it is neither."""
    if "Origin" in request.headers:
        return "requests of web pages are not served"
    own_names = {"localhost", socket.gethostname().lower(), request.transport.get_extra_info("sockname")[0]}
    return f"this service is not called {request.host!r}" if named and host_of(request.host) not in own_names else None


async def end_headless(server: web.Server) -> None:
    """End, for ever, connections without a whole request within HEAD_S, and those beyond the limit of such
    connections."""
    since: dict = {}
    while True:
        now = time.monotonic()
        headless = [handler for handler in server.connections if handler._request_count == 0]
        since = {handler: since.get(handler, now) for handler in headless}
        for place, handler in enumerate(sorted(headless, key=since.get)):
            late = now - since[handler] > HEAD_S or place < len(headless) - MAX_HEADLESS
            if late and handler.transport is not None:
                handler.transport.abort()
        await asyncio.sleep(0.25)


def _problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"detail": f"{sentence}."}, status=status, headers=headers)
