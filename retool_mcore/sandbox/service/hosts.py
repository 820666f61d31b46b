"""Which services there are, which of them answer, and which has the least to do."""

import asyncio
import logging
import math
import random
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from retool_mcore.errors import UserError
from retool_mcore.files import shown
from retool_mcore.sandbox.service.schema import LOAD_HEADER

CHECK_S, CHECK_TIMEOUT_S = 5.0, 3.0
# A host that does not answer is asked again soon and then less often; three silences in a row mean that it hangs.
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
SILENCES = 3
# Within this a host that answers again has been asked, whatever was known of it before.
ASKED_AGAIN_S = 2 * LAST_RETRY_S + CHECK_TIMEOUT_S
RELOAD_S = 2.0
IDLE_S = 1.0
# A server may close an idle connection after 5 s (uvicorn's default); a run must not be the one to find out.
KEEP_ALIVE_S = 4.0
CONNECT_TIMEOUT_S = 2.0
log = logging.getLogger(__name__)


def clean_url(text: str) -> str:
    """http://host:port of a service. Raises UserError for what is no http address."""
    url = text.strip().rstrip("/").removesuffix("/run_code")
    place = shown(url).partition("://")[2]
    try:
        address = urlsplit(url)
        sound = address.scheme in ("http", "https") and address.hostname and (address.port or 1) > 0
    except ValueError:  # a port that is no number, a bracket without its other
        sound = False
    if place.count(":") > 1 and not place.startswith("["):
        sound = False
    if not sound or re.search(r"\s", url):
        brackets = ": an IPv6 address stands in brackets, http://[::1]:8080" if place.count(":") > 1 else ""
        raise UserError(f"{shown(text.strip())!r} is not the http:// address of a sandbox service{brackets}.")
    return url


class HostList:
    """Addresses that are listed directly, in a file or in the files of a folder: one a line, `#` begins a comment."""

    def __init__(self, urls: Sequence[str] = (), path: str | Path | None = None):
        self.path = Path(path) if path is not None else None
        self._given = tuple(dict.fromkeys(map(clean_url, urls)))

    def read(self) -> tuple[str, ...]:
        """Raises UserError for a malformed line, OSError when the path cannot be read."""
        if self.path is None:
            return self._given
        files = [self.path]
        if self.path.is_dir():
            files = sorted(file for file in self.path.iterdir() if not file.name.startswith("."))
        lines = [line.partition("#")[0].strip() for file in files for line in _lines(file)]
        return tuple(dict.fromkeys([*self._given, *(clean_url(line) for line in lines if line)]))

    def __str__(self) -> str:
        return ", ".join(map(shown, self._given)) or f"sandbox.hosts_from={self.path}"


def _lines(file: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return file.read_text().splitlines()
    return []  # Its service took it away since the folder was read.


@dataclass(eq=False)
class Host:
    """One service as one event loop sees it. `load`: runs of other clients there, as the service last reported."""

    url: str
    up: bool = True
    suspect: bool = False
    draining: bool = False
    in_flight: int = 0
    load: int = 0
    slots: int = 1
    silences: int = 0
    busy_until: float = 0.0
    attempts: set[asyncio.Timeout] = field(default_factory=set)
    look: asyncio.Event = field(default_factory=asyncio.Event)

    def usable(self, now: float) -> bool:
        return self.up and not self.suspect and not self.draining and self.busy_until <= now

    def note_load(self, header: str | None) -> None:
        if header:
            running, queued, slots = map(int, header.split())
            self.load, self.slots = max(0, running + queued - self.in_flight), max(1, slots)


class Fleet:
    """The hosts of one event loop: chosen from, watched while runs are in flight, counted in `counts`."""

    def __init__(self, host_list: HostList, health_path: str, counts: Counter):
        self.counts, self._list, self._health_path = counts, host_list, health_path
        self._changed = asyncio.Event()
        self._in_flight = 0
        self._watchers: dict[str, asyncio.Task] = {}
        self._reloader: asyncio.Task | None = None
        self._http: aiohttp.ClientSession | None = None
        self._silent_since: float | None = None  # no host has answered since then
        self.hosts: dict[str, Host] = {}
        self._take(self._read())

    # --- the connection pool

    def http(self) -> aiohttp.ClientSession:
        """This loop's session. The loop's own shutdown ends it, so a caller that never closes leaks nothing."""
        if self._http is None:
            self._keeper = self._keep()
            # The generator reaches its yield without waiting; from then on the loop knows it and will close it.
            with_session = self._keeper.asend(None)
            try:
                with_session.send(None)
            except StopIteration as reached:
                self._http = reached.value
        return self._http

    async def _keep(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
            yield session

    async def close(self) -> None:
        self._stop_watching()
        if self._http is not None:
            self._http = None
            await self._keeper.aclose()

    # --- choosing

    def choose(self, prefer: str | None = None, avoid: str | None = None) -> Host | None:
        """The least loaded host that may be asked now, `avoid` only if it is the only one; None: wait for one.

        `prefer` is waited for while it is merely busy.
        """
        now = time.monotonic()
        preferred = self.hosts.get(prefer)
        if preferred is not None and preferred.up and not preferred.draining:
            return preferred if preferred.usable(now) else None
        usable = [host for host in self.hosts.values() if host.usable(now)]
        others = [host for host in usable if host.url != avoid] or usable
        # Many clients that all see two idle hosts must not all take the first.
        return min(others, key=lambda host: ((host.in_flight + host.load) / host.slots, random.random()), default=None)

    def silent_s(self) -> float:
        """Seconds since the last of the hosts was found down; 0 while any is up."""
        return 0.0 if self._silent_since is None else time.monotonic() - self._silent_since

    async def wait(self, limit_s: float) -> None:
        """Until some host changes, a busy one may be asked again, or `limit_s` have passed."""
        now = time.monotonic()
        waits = [host.busy_until - now for host in self.hosts.values() if host.up and host.busy_until > now]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.005, min([limit_s, *waits]))):
                await self._changed.wait()

    @asynccontextmanager
    async def attempt(self, host: Host, timeout_s: float) -> AsyncIterator[None]:
        """TimeoutError inside of it: after `timeout_s`, or as soon as the host counts as down."""
        host.in_flight += 1
        try:
            async with asyncio.timeout(timeout_s) as limit:
                host.attempts.add(limit)
                try:
                    yield
                finally:
                    host.attempts.discard(limit)
        finally:
            host.in_flight -= 1

    # --- watching

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Check hosts and read the list again while any caller is inside."""
        self._in_flight += 1
        if self._in_flight == 1:
            self._watch()
        try:
            yield
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                asyncio.get_running_loop().call_later(IDLE_S, self._rest)

    def rest(self, host: Host, seconds: float) -> None:
        """The host asked to be left alone for this time; if it is going away, the check finds out."""
        host.busy_until = time.monotonic() + seconds
        host.look.set()

    def doubt(self, host: Host) -> None:
        """A run on it failed: nothing more goes there until a check has passed."""
        host.suspect = True
        host.look.set()

    def _watch(self) -> None:
        for host in self.hosts.values():
            if host.url not in self._watchers:
                self._watchers[host.url] = asyncio.create_task(self._watch_host(host))
        if self._list.path is not None and self._reloader is None:
            self._reloader = asyncio.create_task(self._reload())

    def _rest(self) -> None:
        if self._in_flight == 0:
            self._stop_watching()

    def _stop_watching(self) -> None:
        tasks = [*self._watchers.values(), *([self._reloader] if self._reloader else [])]
        self._watchers, self._reloader = {}, None
        for task in tasks:
            task.cancel()

    async def _watch_host(self, host: Host) -> None:
        while True:
            again_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** min(host.silences, 10))
            delay_s = CHECK_S if host.up and not host.suspect else again_s
            if not (host.suspect and host.up):
                host.look.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay_s * random.uniform(0.75, 1.25)):
                        await host.look.wait()
            await self._check(host)

    async def _check(self, host: Host) -> None:
        refused = False
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S), self.http().get(host.url + self._health_path) as response:
                answers = response.status < 500 or LOAD_HEADER in response.headers
                host.note_load(response.headers.get(LOAD_HEADER))
                host.draining = response.status == 503
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            answers, refused = False, isinstance(error, aiohttp.ClientConnectionError)
        if answers:
            if not host.up:
                log.warning("sandbox host %s is back", shown(host.url))
            came_back = host.suspect or not host.up
            host.up, host.suspect, host.silences = True, False, 0
            self._silent_since = None
            if came_back:
                self._tell()
            return
        host.silences += 1
        if host.up and (refused or host.suspect or host.silences >= SILENCES):
            log.warning("sandbox host %s does not answer", shown(host.url))
            self.counts["unhealthy"] += 1
            host.up, host.suspect, host.silences = False, False, 1
            if self._silent_since is None and not any(other.up for other in self.hosts.values()):
                self._silent_since = time.monotonic()
            for limit in list(host.attempts):  # the runs that wait for this host go elsewhere
                if not limit.expired():
                    limit.reschedule(asyncio.get_running_loop().time())
            self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reload(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_S)
            # A shared file system may hang, and the loop must not.
            self._take(await asyncio.to_thread(self._read))

    def _read(self) -> tuple[str, ...] | None:
        try:
            return self._list.read()
        except (OSError, UserError) as error:
            log.warning("the list of sandbox hosts cannot be read: %s", error)
            return None

    def _take(self, urls: tuple[str, ...] | None) -> None:
        if urls is None:
            return
        for url in set(self.hosts) - set(urls):
            # Runs that are there end there; it may be draining.
            del self.hosts[url]
            if watcher := self._watchers.pop(url, None):
                watcher.cancel()
        for url in urls:
            if url not in self.hosts:
                self.hosts[url] = Host(url)
                self._tell()
        if self._in_flight:
            self._watch()


def retry_after_s(text: str | None) -> float:
    """The header's seconds, a second where it has none, spread so that not all come back at once."""
    try:
        seconds = float(text or 1)
    except ValueError:
        seconds = 1.0
    return min(30.0, seconds if math.isfinite(seconds) else 1.0) * random.uniform(0.5, 1.0)
