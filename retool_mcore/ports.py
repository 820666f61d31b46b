"""Ports below the ephemeral range, and how an address is written.

The kernel hands out ephemeral ports to every outgoing connection; a server that is given a port from that range finds
it taken now and then.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

FIRST_PORT = 10_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_EPHEMERAL_DEFAULT = 32_768
_ROOM = 1_000


def first_ephemeral() -> int:
    """Return the first port of this host's ephemeral range."""
    text = _EPHEMERAL.read_text().split() if _EPHEMERAL.exists() else []
    # A range that begins at the very bottom leaves nothing below it: then the usual border is as good as any.
    first = int(text[0]) if text else _EPHEMERAL_DEFAULT
    return first if first >= FIRST_PORT + 5_000 else _EPHEMERAL_DEFAULT


def meeting_range() -> list[int]:
    """[first, end) of at least 1,000 ports, beginning anywhere, so that runs which share a host do not meet."""
    end = first_ephemeral()
    return [FIRST_PORT + secrets.randbelow(end - FIRST_PORT - _ROOM), end]


def bare(host: str) -> str:
    """`host` without the brackets of an IPv6 address, as a socket takes it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def host_port(host: str, port: int) -> str:
    """host:port as it stands in an address: an IPv6 address in brackets, its interface escaped (RFC 6874)."""
    host = bare(host)
    return f"[{host.replace('%', '%25')}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(place: str) -> str | None:
    """The host of host:port, as of a request's Host header; None: it is malformed."""
    try:
        return urlsplit(f"//{place}").hostname
    except ValueError:
        return None


def otlp_receiver(environment: Mapping[str, str]) -> str | None:
    """Return the address to which OpenTelemetry's exporter sends traces by its variables; None: they name none."""
    if address := environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return address
    base = environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return f"{base.rstrip('/')}/v1/traces" if base else None
