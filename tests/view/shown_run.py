"""Shows runs in a headless Chromium, for the tests of the viewer's pages."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer

from retool_mcore.view.server import application
from tests.support.browser.browser import CHROMIUM, Tab, browser

MARKS = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(400),
]
COUNT = "document.getElementById('count').innerText"
ROWS = "[...document.querySelectorAll('.body .row')].map(row => row.innerText.replaceAll('\\n', '|'))"
TABLE = "[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"


@asynccontextmanager
async def shown(*runs: Path, page: str = "/"):
    """A tab that shows the page #PAGE of these runs; at its end nothing must have been complained of."""
    async with TestServer(application(runs)) as server, browser() as tab:
        await tab.open(f"{server.make_url('/')}#{page}")
        yield tab
        assert tab.said == []


def look(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(body())


async def hash_of(tab: Tab) -> str:
    return await tab.js("decodeURIComponent(location.hash)")


async def figure(tab: Tab, title: str) -> str:
    """The figure of this title is `window.own` from now on."""
    named = f"f => f.querySelector('h3').innerText === {title!r}"
    found = f"[...document.querySelectorAll('figure')].find({named})"
    return await tab.js(f"(window.own = {found}).querySelector('figcaption').innerText")


async def click_on_step(tab: Tab, step: int, last: int) -> None:
    """Clicks into `window.own`, where this step of 1 to `last` is."""
    box = await tab.js(
        "(own.scrollIntoView({block: 'center'}), (({x, y, width, height}) => [x, y, width, height])"
        "(own.querySelector('svg.chart').getBoundingClientRect()))"
    )
    place = (46 + (step - 1) / (last - 1) * (380 - 8 - 46)) / 380
    await tab.click(box[0] + place * box[2], box[1] + box[3] / 2)
