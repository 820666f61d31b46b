"""Real services for the tests: in this process over a scripted sandbox, or of their own over a real one."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.service.app import Service
from retool_mcore.sandbox.service.schema import Limits

SERVE = Path(__file__).parents[1] / "support" / "serve_plainly.py"


class Gate:
    """A sandbox whose runs end, with their code as stdout, once the test opens it; `order` is that of their starts."""

    def __init__(self, is_open=True):
        self.order, self.options, self.ended = [], [], []
        self.open = asyncio.Event()
        if is_open:
            self.open.set()

    async def run(self, code, **options):
        self.order.append(code)
        self.options.append(options)
        await self.open.wait()
        self.ended.append(code)
        return Result(Status.SUCCESS, f"{code}\n", "", None, 0.01, 0)

    async def end_session(self, session):
        self.ended.append(session)

    async def close(self):
        pass


@asynccontextmanager
async def served(sandbox, *, slots=4, max_waiting=100, port=0, **options):
    """(service, its url)"""
    service = Service(
        sandbox, slots=slots, max_waiting=max_waiting, limits=Limits(timeout_s=60, memory_mb=1024), **options
    )
    runner = web.AppRunner(service.app(), handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    service.runner = runner
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield service, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def start_process(*, port=0, register=None, workers=8):
    """A service of its own, not yet ready."""
    config = {"preload": [], "workers": workers, "min_isolation": "process"}
    command = [sys.executable, str(SERVE), json.dumps(config), "127.0.0.1", str(port)]
    command += [str(register)] if register else []
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def url_of(process):
    """Its address, once it is ready."""
    said = process.stdout.readline()
    assert said.startswith("sandbox service: http://"), said + process.stdout.read()
    return said.split()[2]


def end_process(process):
    process.kill()
    process.wait()
    process.stdout.close()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)
