"""The viewer's web server: one page, the index of a run's trajectories, and one trajectory at a time. Local only."""

import asyncio
import base64
import errno
import gzip
import hashlib
import hmac
import json
import re
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from retool_mcore.errors import UserError
from retool_mcore.view.source import Source, coded

PAGE = Path(__file__).with_name("page")
# The page is on this machine and loads nothing from elsewhere; what a policy wrote must not be able to change that. The
# page itself, exported or not, names the scripts that may run by their hashes.
POLICY = "frame-ancestors 'none'; object-src 'none'; base-uri 'none'; form-action 'none'; connect-src 'self'"
COOKIE = "retool_view"


def page(embedded: dict | None = None, index: dict | None = None) -> str:
    """The whole page as one HTML text, with its list if `index` is given; with `embedded` it needs no server."""
    html = (PAGE / "page.html").read_text()
    for mark, text in (
        ("/*CSS*/", (PAGE / "page.css").read_text()),
        ("/*JS*/", (PAGE / "page.js").read_text()),
        ("/*DATA*/", f"window.EMBEDDED = {_in_script(embedded)};" if embedded else ""),
        ("/*INDEX*/", _in_script(coded(index)) if index else ""),
    ):
        html = html.replace(mark, text, 1)
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    policy = f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'"
    return html.replace("<title>", f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<title>', 1)


def export(source: Source, places: list[tuple[int, int]]) -> str:
    """One self-contained HTML file with the trajectories at `places`, [(step, row), ...]; two are side by side.

    Raises UserError when there is no such trajectory.
    """
    addresses = [f"{step}/{row}" for step, row in places]
    return page(
        {
            "index": source.index(places),
            "details": {address: source.detail(*place) for address, place in zip(addresses, places, strict=True)},
            "start": f"#/{'t' if len(places) == 1 else 'c'}/{'/'.join(addresses)}",
        }
    )


def application(source: Source, token: str | None = None, host: str = "127.0.0.1") -> web.Application:
    """The routes: /, /api/index, /api/problems?text=, /api/trajectory/STEP/ROW, /export/STEP/ROW[/STEP/ROW].html

    With a `token` a browser gets in by /?token=TOKEN, which leaves a cookie, and by the name localhost or `host` alone.
    """

    def refused(request: web.Request) -> web.StreamResponse | None:
        if urlsplit(f"//{request.host}").hostname not in {"localhost", "127.0.0.1", host}:
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
        except UserError as error:
            return web.Response(status=404, text=str(error))
        response.headers["Content-Security-Policy"] = POLICY
        return response

    makers = {
        # The list comes with the page: a second request takes longer than both on a busy machine.
        "text/html": lambda: page(index=source.index()),
        "application/json": lambda: json.dumps(source.index()),
    }
    packed: dict[str, tuple[tuple, bytes]] = {}

    def pack(kind: str) -> bytes:
        """What `makers[kind]` makes in gzip, made again only when the run has changed."""
        state = source.refresh()
        if packed.get(kind, (None,))[0] != state:
            # The lowest level: others take several times as long for what is mostly sent within the machine.
            packed[kind] = state, gzip.compress(makers[kind]().encode(), 1)
        return packed[kind][1]

    def send(request: web.Request, kind: str) -> web.Response:
        body, accepted = pack(kind), "gzip" in request.headers.get("Accept-Encoding", "")
        headers = {"Content-Encoding": "gzip"} if accepted else {}
        body = body if accepted else gzip.decompress(body)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    async def show_page(request: web.Request) -> web.Response:
        return send(request, "text/html")

    async def index(request: web.Request) -> web.Response:
        return send(request, "application/json")

    async def problems(request: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(source.problems, request.query.get("text", "")))

    async def trajectory(request: web.Request) -> web.Response:
        return _json(source.detail(int(request.match_info["step"]), int(request.match_info["row"])))

    async def exported(request: web.Request) -> web.Response:
        numbers = [int(part) for part in request.match_info["places"].split("/")]
        places = list(zip(numbers[::2], numbers[1::2], strict=True))
        return web.Response(text=export(source, places), content_type="text/html")

    pack("text/html")  # so that the first request finds it
    app = web.Application(middlewares=[answer])
    app.router.add_get("/", show_page)
    app.router.add_get("/api/index", index)
    app.router.add_get("/api/problems", problems)
    app.router.add_get(r"/api/trajectory/{step:\d+}/{row:\d+}", trajectory)
    app.router.add_get(r"/export/{places:\d+/\d+(?:/\d+/\d+)?}.html", exported)
    return app


def _in_script(value: dict) -> str:
    # `</` ends a script element wherever it stands, also inside of a string, and `<!--<script` lets none end.
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _json(value: dict | list) -> web.Response:
    response = web.Response(text=json.dumps(value), content_type="application/json")
    response.enable_compression()
    return response


def serve(run: Path, *, host: str, port: int, part: str = "rl") -> None:
    """Serve a part of the run (view/source.py) until Ctrl-C. Raises UserError when it is empty or the port is taken."""
    source = Source(run, part)
    count = len(source.index()["step"])
    token = secrets.token_urlsafe(16)
    address = f"http://{host}:{port}/?token={token}"
    print(
        f"{count} trajectories of {run} at {address}  (from elsewhere: ssh -L {port}:{host}:{port} THIS_MACHINE)",
        flush=True,
    )
    try:
        web.run_app(application(source, token, host), host=host, port=port, print=None)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UserError(f"port {port} cannot be used ({error.strerror}): give another with --port.") from None
        raise UserError(f"the address {host} cannot be used ({error.strerror}): give another with --host.") from None
