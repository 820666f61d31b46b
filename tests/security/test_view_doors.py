"""Who may look at trajectories, and what a trajectory may do to who looks."""

import asyncio
import base64
import hashlib
import re

from aiohttp.test_utils import TestClient, TestServer
from made_run import make_run

from retool_mcore.view import server


def test_only_who_knows_the_token_looks_and_only_by_this_machines_name(tmp_path):
    async def main():
        app = server.application([make_run(tmp_path / "run")], "token")
        async with TestClient(TestServer(app)) as client:
            found = [(await client.get(path, allow_redirects=False)).status for path in ("/", "/api/list", "/?token=x")]
            entered = await client.get("/?token=token")
            found += [entered.status, (await client.get("/api/list")).status]
            found.append((await client.get("/api/list", headers={"Host": "rebound.evil"})).status)
            return found, entered.headers["Content-Security-Policy"]

    found, policy = asyncio.run(main())
    assert found == [403, 403, 403, 200, 200, 403]
    assert "script-src" not in policy and "frame-ancestors 'none'" in policy


# Names of kinds of elements; nothing is fetched from them.
NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


def test_only_our_own_script_runs_and_nothing_is_loaded_from_elsewhere():
    html = server.page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0] and "unsafe-eval" not in policy
    (script,) = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert html.index("Content-Security-Policy") < html.index("<script") and "innerHTML" not in script
    assert set(re.findall(r"https?://[^\s\"'`)]+", html)) == NAMESPACES
