"""Run the service from start to drained end: the sandbox, its HTTP server, and the address file for clients.

And `probe_url`, which asks one service how it is."""

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files, shown, write_atomically
from retool_mcore.ports import bare, host_port
from retool_mcore.sandbox.concurrency import default_workers
from retool_mcore.sandbox.create import create_sandbox, probe
from retool_mcore.sandbox.fusion import FusionSandbox
from retool_mcore.sandbox.service.app import MAX_TIMEOUT_S, Service, end_headless
from retool_mcore.sandbox.service.schema import Limits

# A reply may still be on its way to a slow client when the last run has ended.
GOODBYE_S = 10.0
# Programs at once where nothing says otherwise: verl's own test wants 100 runs of 10 s each answered within 30 s,
# and one that sleeps costs some 10 MB.
SLOTS = 64
TOKEN = "RETOOL_SANDBOX_TOKEN"  # the environment variable that fixes it
LOOPBACK = ("127.0.0.1", "::1", "localhost")


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
        register: folder that holds a file with this service's address and token while the service takes runs
            (sandbox.hosts_from). Only this user can read it.
        advertise: this machine's name in that address; None: `host`, or the host name where that is a wildcard.

    Raises:
        UserError: a setting makes no sense, the isolation asked for is not to be had, the port is taken, other
            machines would reach a service that has no token.
    """
    host = bare(host)
    token = os.environ.get(TOKEN) or (secrets.token_urlsafe(32) if register is not None else None)
    if token is None and host not in LOOPBACK:
        raise UserError(
            f"A service at {host} is open to everybody who reaches it: give --register FOLDER, which makes a token for "
            f"the clients of that folder, or set {TOKEN}."
        )
    # Connections that never ask for anything must not use up the descriptors of those that do.
    allow_open_files()
    if config.get("kind") != "local":
        wanted = f"sandbox.kind must be local, not {config['kind']}"
        raise UserError(f"A service runs programs on its own machine: {wanted}.")
    config = dict(config)
    slots = config["workers"] = config.get("workers") or max(SLOTS, default_workers())
    sandbox = create_sandbox(config)
    try:
        await probe(sandbox)
        limits = Limits(timeout_s=max_timeout_s, memory_mb=config.get("memory_mb", 1024))
        level = sandbox.level  # type: ignore[attr-defined]
        service = Service(sandbox, slots=slots, max_waiting=max_waiting, limits=limits, level=level, token=token)
        # A client that hangs up cancels its handler: what it alone waited for is stopped.
        waits: dict[str, Any] = {"shutdown_timeout": GOODBYE_S, "keepalive_timeout": 75}
        runner = web.AppRunner(service.app(), handler_cancellation=True, access_log=None, **waits)
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
        place, other = host_port(host, port), "--host" if isinstance(error, socket.gaierror) else "--port"
        raise UserError(f"Cannot listen on {place} ({reason}): choose another {other}.") from error
    port = runner.addresses[0][1]
    name = bare(advertise or (socket.gethostname() if host in ("0.0.0.0", "::", "") else host))
    place = host_port(name, port)
    sweeper = asyncio.create_task(end_headless(runner.server))
    file = None
    if register is not None:
        register.mkdir(parents=True, exist_ok=True)
        file = register / f"{name}-{port}"
        write_atomically(file, f"http://retool:{quote(service.token, safe='')}@{place}\n", mode=0o600)
    print(
        f"sandbox service: http://{place} (isolation: {service.level}, {service.queue.slots} programs at once)",
        flush=True,
    )
    try:
        await stop.wait()
    finally:
        sweeper.cancel()
        if file is not None:
            with suppress(FileNotFoundError):
                file.unlink()
    print(f"sandbox service: draining, {service.runs.active} runs to finish", flush=True)
    await service.drain()
    print("sandbox service: drained", flush=True)


async def probe_url(url: str) -> str:
    """Describe the service in one line. Raises UserError when its answer is missing or wrong."""
    # The dialect that both kinds of service speak.
    sandbox = FusionSandbox(url=url)
    await probe(sandbox)
    started = time.perf_counter()
    await probe(sandbox)
    answer_ms = (time.perf_counter() - started) * 1e3
    state, kind = await sandbox.health(), "a SandboxFusion service"
    if state is not None:
        kind = "isolation: {level}, {running} running, {queued} queued, {slots} at once, {status}".format(**state)
    await sandbox.close()
    return f"{shown(url)}: {kind}; print(1+1) in {answer_ms:.1f} ms"
