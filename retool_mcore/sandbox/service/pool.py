"""Client of a pool of sandbox services: a run goes to the least loaded host, and to another if that one fails.

A run has an id, by which a host that has it already joins or repeats it instead of running it twice. Hosts may die,
come back, be added and be taken away (sandbox.hosts_from is read again every few seconds) while runs are under way.
"""

import asyncio
import base64
import copy
import json
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from retool_mcore.errors import UserError
from retool_mcore.files import shown, without_secrets
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.concurrency import FairQueue, PerLoop
from retool_mcore.sandbox.service import schema
from retool_mcore.sandbox.service.hosts import ASKED_AGAIN_S, Fleet, Host, HostList, retry_after_s

# How long past its own limit a run may wait for a slot of the service before it is asked for again.
REPLY_GRACE_S = 60.0
# A sandbox error may be one host's trouble; after so many more it is taken for the answer.
SANDBOX_ERRORS = 2
HEALTH_TIMEOUT_S = 10.0
SAME_HOST_S = 0.05
WAIT_S = 0.5
MAX_SESSIONS = 20_000
COUNTERS = ("runs", "retries", "failovers", "unhealthy", "busy", "replayed", "lost")


class _Unusable(Exception):
    """This host cannot run it now."""


class _Forgotten(_Unusable):
    """It does not know the session: it was started anew."""


class _Refused(Exception):
    """Every host would say the same."""


@dataclass
class _Session:
    """A session's host, and the requests that made its state, to make it again elsewhere."""

    home: str | None = None
    history: list[dict] = field(default_factory=list)


class _State:
    """The state of one event loop."""

    def __init__(self, pool: "PoolSandbox"):
        self.counts: Counter = Counter()
        self.fleet = Fleet(pool.host_list, pool.health_path, self.counts)
        self.queue = FairQueue(pool.concurrency)
        self.name = secrets.token_hex(4)


@dataclass(eq=False, kw_only=True)
class PoolSandbox:
    """Runs programs on the hosts of a pool. Any event loop and any fork may use it; each has its own connections.

    `patience_s`: for how long a run that no host takes or finishes is tried again before it is a Status.SANDBOX. When
    no host has answered for that time, later runs give up within seconds: an outage is waited for once.
    `concurrency` bounds the runs at once in each event loop; the rest wait, fair between trajectories. A session lives
    on one host; where that dies, its programs are run again on another (what they printed is not seen twice). The
    services' own limit of output holds.
    """

    health_path = "/health"

    hosts: Sequence[str] = ()
    hosts_from: str | Path | None = None
    timeout_s: float = 30.0
    memory_mb: int = 1024
    concurrency: int = 256
    patience_s: float = 600.0

    def __post_init__(self):
        self.host_list = HostList(self.hosts, self.hosts_from)
        self._past: Counter = Counter()
        self._states = PerLoop(lambda: _State(self), lambda state: self._past.update(state.counts))
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        memory_mb: int | None = None,
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        fetch_files: Sequence[str] = (),
        session: str | None = None,
    ) -> Result:
        """See Sandbox.run. Asks again, here and there, for `patience_s` when hosts fail, hang, are full or are gone."""
        request: dict = {"code": code, "language": "python", "stdin": stdin}
        request["run_timeout"] = self.timeout_s if timeout_s is None else timeout_s
        request["memory_limit_MB"] = self.memory_mb if memory_mb is None else memory_mb
        if files:
            request["files"] = {path: base64.b64encode(data).decode() for path, data in files.items()}
        if fetch_files:
            request["fetch_files"] = list(fetch_files)
        state = self._states.get()
        # One task is one trajectory: an episode awaits its calls one after another.
        key = session or f"{state.name}-{id(asyncio.current_task())}"
        async with state.queue.slot(key), state.fleet.in_use():
            state.counts["runs"] += 1
            return await self._run(state, request, key, session)

    async def end_session(self, session: str) -> None:
        """Let its host forget it; a host that does not answer has forgotten it already."""
        known = self._sessions.pop(session, None)
        if known is not None and known.home is not None:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with asyncio.timeout(REPLY_GRACE_S):
                    await (await self._states.get().fleet.http().delete(f"{known.home}/session/{session}")).read()

    async def close(self) -> None:
        """Close this loop's connections; a later run opens new ones."""
        await self._states.get().fleet.close()

    def impatient(self, patience_s: float) -> "PoolSandbox":
        """Return this pool with another patience."""
        other = copy.copy(self)
        other.patience_s = patience_s
        return other

    def stats(self) -> dict[str, float]:
        """Counts of this process: runs, retries (asked again), failovers (on another host), unhealthy (hosts found
        down), busy (turned away), replayed (programs of moved sessions), lost (given up); and hosts, hosts_up now.
        """
        states = self._states.all()
        counts = sum((state.counts for state in states), self._past.copy())
        hosts = [host for state in states[-1:] for host in state.fleet.hosts.values()]
        totals: dict[str, float] = {name: counts[name] for name in COUNTERS}
        return totals | {"hosts": len(hosts), "hosts_up": sum(h.up for h in hosts)}

    async def health(self) -> dict | None:  # type: ignore[return]
        """Return the first host's report about itself at /health; None when it has no such page."""
        fleet = self._states.get().fleet
        for url in fleet.hosts:
            async with fleet.attempt(fleet.hosts[url], HEALTH_TIMEOUT_S), fleet.http().get(f"{url}/health") as response:
                return await response.json() if schema.LOAD_HEADER in response.headers else None

    # --- one run

    async def _run(self, state: _State, request: dict, key: str, session_id: str | None) -> Result:
        session = None if session_id is None else self._session(session_id)
        request_id = secrets.token_hex(12)
        started = time.monotonic()
        silence = "no host answers at" if state.fleet.hosts else "no host is known in"
        last, reason, errors = None, f"{silence} {self.host_list}", 0
        while True:
            host = state.fleet.choose(prefer=session.home if session else None, avoid=last)
            if host is not None:
                if last is not None:
                    state.counts["retries"] += 1
                    state.counts["failovers"] += host.url != last
                    if host.url == last:
                        await asyncio.sleep(SAME_HOST_S)
                last = host.url
                try:
                    if session is None:
                        result = await self._ask(state, host, self._identified(request, request_id, key))
                    else:
                        result = await self._in_session(state, host, request, request_id, session_id, session)
                    if result.status is not Status.SANDBOX or errors == SANDBOX_ERRORS:
                        return result
                    errors, reason = errors + 1, result.stderr.strip()
                except _Refused as error:
                    return Result.broken(f"{shown(host.url)} refused the run: {without_secrets(str(error), host.url)}")
                except _Unusable as error:
                    reason = f"{shown(host.url)}: {without_secrets(str(error), host.url)}"
            waited = time.monotonic() - started
            if waited > self.patience_s or waited > ASKED_AGAIN_S and state.fleet.silent_s() > self.patience_s:
                state.counts["lost"] += 1
                return Result.broken(f"no sandbox service ran it within {self.patience_s:g} s ({reason})")
            if state.fleet.choose(prefer=session.home if session else None) is None:
                await state.fleet.wait(min(WAIT_S, self.patience_s))

    async def _in_session(
        self, state: _State, host: Host, request: dict, request_id: str, session_id: str, session: _Session
    ) -> Result:
        if session.home != host.url:
            await self._replay(state, host, session_id, session)
        named = request | {"session": session_id}
        try:
            asked = named | {"session_resume": bool(session.history)}
            result = await self._ask(state, host, self._identified(asked, request_id, session_id))
        except _Forgotten:
            session.home = None
            raise
        # What ended a program from outside has ended its interpreter too: nothing of it is left to make again.
        if result.status in (Status.TIMEOUT, Status.MEMORY, Status.KILLED):
            session.history.clear()
        elif result.status is not Status.SANDBOX:
            session.history.append(named)
        return result

    async def _replay(self, state: _State, host: Host, session_id: str, session: _Session) -> None:
        for place, earlier in enumerate(session.history):
            again = earlier | {"session_resume": place > 0}
            result = await self._ask(state, host, self._identified(again, secrets.token_hex(12), session_id))
            if result.status is Status.SANDBOX:
                raise _Unusable(result.stderr.strip())
            state.counts["replayed"] += 1
        session.home = host.url

    def _session(self, session_id: str) -> _Session:
        session = self._sessions.setdefault(session_id, _Session())
        self._sessions.move_to_end(session_id)
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    async def _ask(self, state: _State, host: Host, request: dict) -> Result:
        """Raises _Unusable when this host did not run it, _Refused when none will."""
        url, timeout_s = f"{host.url}/run_code", request["run_timeout"]
        asked = time.monotonic()
        try:
            async with (
                state.fleet.attempt(host, timeout_s + REPLY_GRACE_S),
                state.fleet.http().post(url, json=self._payload(request)) as response,
            ):
                host.note_load(response.headers.get(schema.LOAD_HEADER))
                if response.status >= 400:
                    return await self._complain(state, host, response)
                return self._result(await response.json(), request, time.monotonic() - asked)
        except TimeoutError:
            raise _Unusable("it did not answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            state.fleet.doubt(host)
            raise _Unusable(str(error) or type(error).__name__) from error

    async def _complain(self, state: _State, host: Host, response: aiohttp.ClientResponse) -> Result:
        text = (await response.text(errors="replace")).strip()
        with suppress(ValueError, KeyError, TypeError):
            text = json.loads(text)["detail"]
        reason = f"HTTP {response.status} {str(text)[:300]}"
        if response.status in (429, 503):
            state.counts["busy"] += 1
            state.fleet.rest(host, retry_after_s(response.headers.get("Retry-After")))
            raise _Unusable(reason)
        if response.status == 409:
            raise _Forgotten(reason)
        if response.status < 500:
            raise _Refused(reason)
        if response.status == 500:
            # It is there, but this run breaks it: no reason to wait for long, nor to stop asking it for others.
            return Result.broken(f"{shown(host.url)}: {without_secrets(reason, host.url)}")
        state.fleet.doubt(host)
        raise _Unusable(reason)

    # --- what one service understands

    def _identified(self, request: dict, request_id: str, key: str) -> dict:
        return request | {"request_id": request_id, "trajectory": key}

    def _payload(self, request: dict) -> dict:
        return request | {"display": True}

    def _result(self, reply: dict, request: dict, elapsed_s: float) -> Result:
        """Raises ValueError for a reply that is not this service's."""
        return schema.read_reply(reply)


def check_hosts(hosts: Sequence[str], hosts_from: str | None) -> None:
    """Raises UserError when no pool can be made of these settings."""
    if isinstance(hosts, str) or not all(isinstance(url, str) for url in hosts):
        raise UserError("sandbox.hosts must be a list, as in sandbox.hosts=[http://node1:8080].")
    if not hosts and not hosts_from:
        raise UserError("A pool needs sandbox.hosts=[http://HOST:PORT,...] or sandbox.hosts_from=FILE_OR_FOLDER.")
