"""Takes the pictures of docs/viewing.md: `python -m tests.support.browser.pictures`. Needs Chromium."""

import asyncio
import tempfile
from pathlib import Path

from aiohttp.test_utils import TestServer

from retool_mcore.view.server import application
from tests.support.browser.browser import browser
from tests.support.browser.example_run import make_run

DOCS = Path(__file__).parents[3] / "docs"
# File, height in pixels, address.
PICTURES = (
    ("view-overview", 1010, "#/"),
    ("view-list", 560, "#/list?step=17&sort=score"),
    ("view-failures", 330, "#/errors?step=17"),
    ("view-trajectory", 900, "#/t/3/{failed}"),
    ("view-compare", 860, "#/c/3/{failed}/3/{other}"),
    ("view-changes", 420, "#/changes?since=15"),
    ("view-time", 600, "#/time/17"),
)
SEVERAL = ("view-seeds", 700, "#/")


async def take(folder: Path, scratch: Path) -> None:
    run = make_run(scratch / "seed1")
    async with TestServer(application([run])) as server, browser(1240) as tab:
        await tab.open(f"{server.make_url('/')}#/list?step=3&error=error:+NameError:+name+…+is+not+defined&sort=-calls")
        await tab.until("!!document.querySelector('.body .row')")
        failed = await tab.js("Number(document.querySelector('.body .row').hash.match(/t\\/3\\/(\\d+)/)[1])")
        for name, height, address in PICTURES:
            other = failed + 1 if failed % 4 < 3 else failed - 1  # of the same group
            await tab.size(1240, height)
            await tab.go(address.format(failed=failed, other=other))
            await tab.picture(folder / f"{name}.png")
    runs = [run, make_run(scratch / "seed2", 2), make_run(scratch / "seed3", 3), make_run(scratch / "slower", 1, 0.4)]
    async with TestServer(application(runs)) as server, browser(1240, SEVERAL[1]) as tab:
        await tab.open(f"{server.make_url('/')}{SEVERAL[2]}")
        await tab.picture(folder / f"{SEVERAL[0]}.png")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch_folder:
        asyncio.run(take(DOCS, Path(scratch_folder)))
