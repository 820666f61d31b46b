"""The viewer's web server: one page, and what it asks for of the runs. Local only."""

import asyncio
import base64
import errno
import functools
import hashlib
import hmac
import itertools
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from aiohttp import web

from retool_mcore.errors import UserError
from retool_mcore.explain.report import explained
from retool_mcore.metrics.charts import TEXT
from retool_mcore.ports import bare, host_of, host_port
from retool_mcore.view.curves import Curves, starts
from retool_mcore.view.query import by_error, entries, select
from retool_mcore.view.source import Source, parts

PAGE = Path(__file__).with_name("page")
# Run in this order, as one.
SCRIPTS = [
    "katex",
    "maths",
    "base",
    "charts",
    "reports",
    "overview",
    "list",
    "changes",
    "starts",
    "time",
    "trajectory",
    "compare",
    "main",
]
MOST = 10_000  # trajectories in one answer
SOON_S = 0.02  # for new step files, where somebody waits for the first rows of a page
# The page is on this machine and loads nothing from elsewhere; what a policy wrote must not be able to change that. The
# page itself, exported or not, names the scripts that may run by their hashes.
POLICY = "frame-ancestors 'none'; object-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'self'"
COOKIE = "retool_view"


def page() -> str:
    """The whole page as one HTML text. A copy in which `embedded` is filled needs no server (page/trajectory.js)."""
    html = (PAGE / "page.html").read_text()
    scripts = ((PAGE / f"{name}.js").read_text() for name in SCRIPTS)
    script = "\n".join([f"'use strict';\nconst CHARTS = {TEXT};", *scripts])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}'; style-src 'unsafe-inline'; connect-src 'self'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'"
    for mark, text in (("POLICY", policy), ("/*CSS*/", (PAGE / "page.css").read_text()), ("/*JS*/", script)):
        html = html.replace(mark, text, 1)
    return html


@dataclass(frozen=True)
class Study:
    """A comparison's plan whose runs are shown. arms: the arm of each run; compare: returns the verdict of
    `retool compare` as {"plan", "claims", "costs"}, or raises UserError."""

    arms: Sequence[str] = ()
    compare: Callable[[], Mapping] = field(default=lambda: {})


def application(
    folders: Sequence[Path],
    token: str | None = None,
    host: str = "127.0.0.1",
    default: str = "rl",
    study: Study | None = None,
) -> web.Application:
    """The routes: /, /api/runs, /api/overview, /api/explain, /api/study, /api/starts, /api/list, /api/trace/STEP and
    /api/trajectory/STEP/ROW.

    Queries: `run`, the number of one of `folders`; `part` (view/source.py), else `default`; of the list the filters of
    view/query.py, `first` and `count`, or `near`=STEP/ROW instead of `first`. Raises UserError when there is
    nothing to show in a run. With a `token` a browser gets in by /?token=TOKEN, which leaves a cookie, and by the name
    localhost or `host` alone.
    """
    runs = [folder.resolve() for folder in folders]

    def refused(request: web.Request) -> web.StreamResponse | None:
        if host_of(request.host) not in {"localhost", "127.0.0.1", "::1", host}:
            return web.Response(status=403, text=f"this page is not at {request.host!r}")
        if hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), token.encode()):
            return None
        if not hmac.compare_digest(request.query.get("token", "").encode(), token.encode()):
            return web.Response(status=403, text="open the address that `retool view` printed, with its token")
        entered = web.Response(status=303, headers={"Location": "/"})
        entered.set_cookie(COOKIE, token, httponly=True, samesite="Strict")
        return entered

    @web.middleware
    async def answer(request: web.Request, handler) -> web.StreamResponse:
        try:
            response = (refused(request) if token else None) or await handler(request)
        except (UserError, ValueError) as error:
            return web.Response(status=404, text=str(error))
        response.headers["Content-Security-Policy"] = POLICY
        return response

    def source_of(request: web.Request) -> Source:
        number, part = request.query.get("run", "0"), request.query.get("part", default)
        if not number.isdecimal() or int(number) >= len(runs):
            raise UserError(f"there is no run {number}: they count from 0 to {len(runs) - 1}.")
        return opened(runs[int(number)], part)

    async def show_page(request: web.Request) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    async def names(request: web.Request) -> web.Response:
        arms = study.arms if study else [None] * len(runs)
        return _json(
            [
                {"name": run.name, "folder": str(run), "part": default, "parts": parts(run), "arm": arm}
                for run, arm in zip(runs, arms, strict=True)
            ]
        )

    async def overview(request: web.Request) -> web.Response:
        return _json(curves[source_of(request).run].read())

    async def explain(request: web.Request) -> web.Response:
        run = source_of(request).run
        return _json(await reports[run].read(curves[run].read()))

    async def compared(request: web.Request) -> web.Response:
        if study is None:
            return _json({})
        try:
            return _json(dict(await asyncio.to_thread(study.compare)))
        except UserError as error:  # such as a run that has not ended
            return _json({"error": str(error)})

    async def started(request: web.Request) -> web.Response:
        return _json(starts(source_of(request).run))

    async def listed(request: web.Request) -> web.Response:
        source, query = source_of(request), dict(request.query)
        budget = {"budget_s": SOON_S} if query.pop("soon", "") else {}
        source.refresh(**budget, wanted=query.get("step", ""))
        columns, words = data = source.data()
        places = select(data, query)
        first, count = int(query.get("first", 0)), int(query.get("count", 100))
        if near := re.fullmatch(r"(\d+)/(\d+)", query.get("near", "")):  # from the one before this trajectory
            step, row = map(int, near.groups())
            at = np.flatnonzero((columns["step"][places] == step) & (columns["row"][places] == row))
            first = max(int(at[0]) - 1, 0) if len(at) else len(places)
        reply: dict = {"total": len(places), "of": len(columns["step"]), "unread": source.unread}
        reply |= {"version": source.version, "first": first}
        reply["rows"] = entries(data, places[first : first + min(count, MOST)])
        reply |= {"sources": sorted(words["data_source"]), "errors": by_error(data, places)}
        return _json(reply | {"statuses": sorted({*words["finish"], *itertools.chain(*words["statuses"])})})

    async def trajectory(request: web.Request) -> web.Response:
        return _json(source_of(request).shown(int(request.match_info["step"]), int(request.match_info["row"])))

    async def trace(request: web.Request) -> web.Response:
        folder = source_of(request).run / "rl" / "trace"
        files = {int(path.stem[5:]): path for path in sorted(folder.glob("step_*.json"))}
        step = int(request.match_info["step"])
        if step not in files:
            have = ", ".join(map(str, files)) or "none"
            raise UserError(f"there is no time line of step {step}: the last ones are kept, here {have}.")
        return _json({"steps": list(files), "trace": json.loads(files[step].read_text())})

    html, opened, curves = page(), functools.cache(Source), {run: Curves(run) for run in runs}
    reports = {run: _Report(run) for run in runs}
    for run in runs:
        opened(run, default)
        curves[run].read()  # so that the first request finds them parsed
    app = web.Application(middlewares=[answer])
    app.router.add_get("/", show_page)
    app.router.add_get("/api/runs", names)
    app.router.add_get("/api/overview", overview)
    app.router.add_get("/api/explain", explain)
    app.router.add_get("/api/study", compared)
    app.router.add_get("/api/starts", started)
    app.router.add_get("/api/list", listed)
    app.router.add_get(r"/api/trace/{step:\d+}", trace)
    app.router.add_get(r"/api/trajectory/{step:\d+}/{row:\d+}", trajectory)
    return app


class _Report:
    """What `retool explain` says of a run, read again when a step or an attempt has ended."""

    def __init__(self, run: Path) -> None:
        self.run, self.state, self.report, self.lock = run, "", {}, asyncio.Lock()

    async def read(self, overview: Mapping) -> dict:
        stages = overview["stages"]
        state = json.dumps([[n, one["steps"][-1], one["attempts"], one["complete"]] for n, one in stages.items()])
        async with self.lock:  # a second request waits for the first one's
            if state != self.state:
                self.report, self.state = await asyncio.to_thread(explained, self.run), state
        return self.report


def _json(value: dict | list) -> web.Response:
    response = web.Response(text=json.dumps(value), content_type="application/json")
    response.enable_compression()
    return response


def serve(folders: Sequence[Path], *, host: str, port: int, part: str = "rl", study: Study | None = None) -> None:
    """Serve the runs until Ctrl-C. Raises UserError when one has no such part (view/source.py) or the port is taken."""
    token = secrets.token_urlsafe(16)
    host = bare(host)
    address = f"http://{host_port(host, port)}/?token={token}"
    app = application(folders, token, host, part, study)
    names = ", ".join(map(str, folders))
    print(f"{names} at {address}  (from elsewhere: ssh -L {port}:{host_port(host, port)} THIS_MACHINE)", flush=True)
    try:
        web.run_app(app, host=host, port=port, print=None)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UserError(f"port {port} cannot be used ({error.strerror}): give another with --port.") from None
        raise UserError(f"the address {host} cannot be used ({error.strerror}): give another with --host.") from None
