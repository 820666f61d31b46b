"""`retool serve`: an engine behind the OpenAI-compatible front, from start to drained end."""

import asyncio
import os
import signal
import socket
import sys
import time

from aiohttp import web
from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files
from retool_mcore.gateway.access import KEY
from retool_mcore.gateway.answer import Policy
from retool_mcore.gateway.app import MODEL, Front
from retool_mcore.ports import host_port
from retool_mcore.sandbox.service.app import end_headless
from retool_mcore.tools.toolbox import Toolbox
from retool_mcore.train.loaded import Loaded, loaded

GOODBYE_S = 10.0  # for which a reply may still be on its way to a slow client


def policy_of(ready: Loaded, config, engine) -> Policy:
    """Return the policy that the front serves. engine: as gateway/answer.py has it."""
    served = config.serve
    return Policy(
        fmt=ready.fmt,
        engine=engine,
        tools=None if served.tools == "client" else ready.tools or Toolbox([]),
        limits=ready.limits,
        timeout_s=ready.timeout_s,
        context=ready.context,
        sampling={"temperature": config.temperature, "top_p": config.top_p},
        # A client that runs the tools has prompts of its own.
        prompt=None if served.raw or served.tools == "client" else config.data.prompt,
    )


async def serve(config) -> bool:
    """Serve until SIGTERM or SIGINT, then finish what runs. Returns whether the engine worked to the end.

    A second signal ends what runs.
    """
    stop, now = asyncio.Event(), asyncio.Event()

    def stopped() -> None:
        (now if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped)
    clock = time.monotonic()
    async with loaded(config, config.serve.context) as ready:
        from retool_mcore.backends.vllm.engine import sampled  # vLLM takes seconds

        front = Front(
            policy_of(ready, config, sampled(ready.engine)),
            places=config.parallel.max_num_seqs,
            key=os.environ.get(KEY) or None,
            timeout_s=config.serve.timeout_s,
            alive=lambda: not ready.engine.errored,
        )
        runner = web.AppRunner(
            front.app(), handler_cancellation=True, access_log=None, shutdown_timeout=GOODBYE_S, keepalive_timeout=75
        )
        await runner.setup()
        try:
            port = await listen(runner, config.serve.host, config.serve.port)
            where = f"http://{host_port(config.serve.host, port)}/v1"
            tools = "the client's tools" if front.policy.tools is None else "its own tools"
            print(
                f"serving {config.policy_path} at {where} after {time.monotonic() - clock:.0f} s: model {MODEL!r}, "
                f"{ready.context} tokens of context, {tools}, {front.queue.slots} answers at once",
                flush=True,
            )
            sweeper = asyncio.create_task(end_headless(runner.server))
            await first_of(stop, front.dead)
            sweeper.cancel()
            if not front.dead.is_set():
                print(f"draining: {front.active} requests to finish", flush=True)
                drained = asyncio.create_task(front.drain())
                await first_of(now, drained)
                drained.cancel()
        finally:
            await runner.cleanup()
        return not front.dead.is_set()


async def listen(runner: web.AppRunner, host: str, port: int) -> int:
    """Listen there and return the port; 0 takes a free one. Raises UserError."""
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        other = "--host" if isinstance(error, socket.gaierror) else "--port"
        reason = error.strerror or error
        raise UserError(f"Cannot listen on {host_port(host, port)} ({reason}): choose another {other}.") from error
    return runner.addresses[0][1]


async def first_of(*events: asyncio.Event | asyncio.Task) -> None:
    """Wait for the first of several events or tasks."""
    waits = [asyncio.ensure_future(one.wait() if isinstance(one, asyncio.Event) else one) for one in events]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def main(config_path: str) -> int:
    allow_open_files()
    try:
        return 0 if asyncio.run(serve(OmegaConf.load(config_path))) else 1
    except UserError as error:
        print(f"retool: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
