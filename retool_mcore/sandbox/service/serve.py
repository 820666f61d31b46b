"""From start to drained end: the sandbox, its HTTP server, the address file that tells clients where it is."""

import asyncio
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically
from retool_mcore.sandbox.concurrency import default_workers
from retool_mcore.sandbox.create import create_sandbox, probe, without_cache
from retool_mcore.sandbox.service.app import MAX_TIMEOUT_S, Service
from retool_mcore.sandbox.service.schema import Limits

# A reply may still be on its way to a slow client when the last run has ended.
GOODBYE_S = 10.0


async def serve(
    config: Mapping,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    max_waiting: int = 1024,
    register: Path | None = None,
    advertise: str | None = None,
    max_timeout_s: float = MAX_TIMEOUT_S,
) -> None:
    """Serve until SIGTERM or SIGINT; then finish what runs, and return.

    Args:
        config: for `create_sandbox`; its kind must be "local". `workers` is the number of programs at once.
        port: 0 takes a free one.
        register: folder in which a file with this service's address lies while it takes runs (sandbox.hosts_from).
        advertise: this machine's name in that address; None: `host`, or the host name where that is a wildcard.

    Raises:
        UserError: a setting makes no sense, the isolation asked for is not to be had, the port is taken.
    """
    if config.get("kind") != "local":
        raise UserError(
            f"A service runs programs on its own machine: sandbox.kind must be local, not {config['kind']}."
        )
    config = dict(config)
    slots = config["workers"] = config.get("workers") or default_workers()
    sandbox = create_sandbox(config)
    try:
        await probe(sandbox)
        limits = Limits(timeout_s=max_timeout_s, memory_mb=config.get("memory_mb", 1024))
        level = without_cache(sandbox).level  # type: ignore[attr-defined]
        service = Service(sandbox, slots=slots, max_waiting=max_waiting, limits=limits, level=level)
        # A client that hangs up cancels its handler: what it alone waited for is stopped.
        app = service.app()
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=GOODBYE_S)
        await runner.setup()
        try:
            await _serve(service, runner, host, port, register, advertise)
        finally:
            await runner.cleanup()
    finally:
        await sandbox.close()


async def _serve(
    service: Service, runner: web.AppRunner, host: str, port: int, register: Path | None, advertise: str | None
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        await web.TCPSite(runner, host, port, backlog=1024).start()
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"Cannot listen on {host}:{port} ({reason}): choose another --port.") from error
    port = runner.addresses[0][1]
    name = advertise or (socket.gethostname() if host in ("0.0.0.0", "::", "") else host)
    url = f"http://{name}:{port}"
    file = None
    if register is not None:
        register.mkdir(parents=True, exist_ok=True)
        file = register / f"{name}-{port}"
        write_atomically(file, f"{url}\n")
    print(f"sandbox service: {url} (isolation: {service.level}, {service.queue.slots} programs at once)", flush=True)
    try:
        await stop.wait()
    finally:
        if file is not None:
            with suppress(FileNotFoundError):
                file.unlink()
    print(f"sandbox service: draining, {service.runs.active} runs to finish", flush=True)
    await service.drain()
    print("sandbox service: drained", flush=True)
