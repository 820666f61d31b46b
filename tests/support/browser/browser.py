"""A headless Chromium that tests, benchmarks and pictures.py drive, over the DevTools protocol."""

import asyncio
import base64
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0")


class Tab:
    """One page. `said` collects what the page and the browser complain of: errors, violations of the page's policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket, self.numbers, self.said = socket, itertools.count(1), []
        self.waiting: dict[int, asyncio.Future] = {}
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.socket:
            found = json.loads(message.data)
            if "id" in found:
                self.waiting.pop(found["id"]).set_result(found)
            elif found["method"] == "Runtime.exceptionThrown":
                self.said.append(found["params"]["exceptionDetails"])
            elif found["method"] == "Log.entryAdded" and found["params"]["entry"]["level"] == "error":
                self.said.append(found["params"]["entry"]["text"])
            elif found["method"] == "Page.javascriptDialogOpening":
                self.said.append(f"a dialog: {found['params']['message']}")

    async def ask(self, method: str, **params: Any) -> dict:
        """The answer of the browser to a command of the protocol."""
        number = next(self.numbers)
        self.waiting[number] = asyncio.get_running_loop().create_future()
        await self.socket.send_json({"id": number, "method": method, "params": params})
        answer = await asyncio.wait_for(self.waiting[number], 120)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page, or of what it promises."""
        answer = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    async def until(self, expression: str, seconds: float = 60) -> Any:
        """Waits until the expression is true, and returns it. Raises TimeoutError with what the page shows."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            with suppress(RuntimeError):  # of a document that is not there yet
                if found := await self.js(expression):
                    return found
            await asyncio.sleep(0.05)
        text = await self.js("document.body ? document.body.innerText.slice(0, 2000) : ''")
        raise TimeoutError(f"not within {seconds} s: {expression}\n{self.said}\n{text}")

    async def open(self, address: str) -> None:
        """Goes to an address and waits until the viewer has drawn it."""
        await self.ask("Page.navigate", url=address)
        await self.shown(address.partition("#")[2])

    async def go(self, hash_: str) -> None:
        """To another page of the viewer, as by a link: #/list."""
        await self.js(f"document.body.dataset.ready = ''; location.hash = {json.dumps(hash_)}; 1")
        await self.shown(hash_.removeprefix("#"))

    async def shown(self, hash_: str) -> None:
        """Waits until the page of this address is drawn."""
        wanted = json.dumps("#" + (hash_ or "/"))
        await self.until(f"decodeURIComponent(document.body.dataset.ready || '') === decodeURIComponent({wanted})")

    async def key(self, key: str) -> None:
        """Presses and lets go of a key."""
        text = key if len(key) == 1 else "\r" if key == "Enter" else ""
        await self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, text=text)
        await self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def click(self, x: float, y: float) -> None:
        """Clicks at a place of the window, in pixels."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def picture(self, path: Path) -> None:
        """Writes what the window shows as PNG."""
        path.write_bytes(base64.b64decode((await self.ask("Page.captureScreenshot", format="png"))["data"]))

    async def size(self, width: int, height: int, dark: bool = False) -> None:
        """Of the window, in pixels; and the theme that it asks for."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=features)


@asynccontextmanager
async def browser(width: int = 1280, height: int = 900) -> AsyncIterator[Tab]:
    """A tab of a browser of its own, which ends with the body."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        quiet = {"stdout": asyncio.subprocess.DEVNULL, "stderr": asyncio.subprocess.DEVNULL}
        process = await asyncio.create_subprocess_exec(CHROMIUM, *FLAGS, f"--user-data-dir={profile}", **quiet)
        try:
            told = Path(profile, "DevToolsActivePort")
            async with asyncio.timeout(120):
                while not (told.is_file() and told.read_text().count("\n")):
                    await asyncio.sleep(0.05)
            port = told.read_text().split("\n")[0]
            async with aiohttp.ClientSession() as session:
                targets = await (await session.get(f"http://127.0.0.1:{port}/json/list")).json()
                address = next(target["webSocketDebuggerUrl"] for target in targets if target["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    tab = Tab(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await tab.ask(f"{domain}.enable")
                    await tab.size(width, height)
                    yield tab
                    tab.reader.cancel()
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
