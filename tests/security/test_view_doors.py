"""Who may look at trajectories, and what a trajectory may do to who looks."""

import asyncio
import base64
import hashlib
import re
import sys
from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from retool_mcore.view import server

sys.path.insert(0, str(Path(__file__).parents[1] / "view"))
from test_view_server import make_run  # noqa: E402

from retool_mcore.view.source import Source  # noqa: E402


def test_only_who_knows_the_token_looks_and_only_by_this_machines_name(tmp_path):
    async def main():
        app = server.application(Source(make_run(tmp_path / "run")), "token")
        async with TestClient(TestServer(app)) as client:
            found = [
                (await client.get(path, allow_redirects=False)).status for path in ("/", "/api/index", "/?token=x")
            ]
            entered = await client.get("/?token=token")
            found += [entered.status, (await client.get("/api/index")).status]
            found.append((await client.get("/api/index", headers={"Host": "rebound.evil"})).status)
            return found, entered.headers["Content-Security-Policy"]

    found, policy = asyncio.run(main())
    assert found == [403, 403, 403, 200, 200, 403]
    assert "script-src" not in policy and "frame-ancestors 'none'" in policy


def test_only_our_own_scripts_run_exports_included(tmp_path):
    """`<!--<script` in an output kept the page's script from ending: an exported page was blank."""
    evil = {"index": {}, "details": {"1/0": "<!--<script></script><img src=x onerror=alert(1)>"}, "start": "#/t/1/0"}
    html = server.page(evil)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert "script-src 'sha256-" in policy and "unsafe-inline" not in policy.partition("style-src")[0]
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "<!--<script" not in html and html.index("Content-Security-Policy") < html.index("<script")
