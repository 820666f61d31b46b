"""Addresses and ports of a job: which interface the nodes share, which ports are free below the ephemeral range.

Fixed ports begin at a place that the job's id decides, so that jobs which share a node do not meet.
"""

import os
import socket
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from psutil import net_if_addrs as interfaces

from retool_mcore.errors import UserError
from retool_mcore.ports import FIRST_PORT, first_ephemeral

_INFINIBAND = Path("/sys/class/infiniband")
_NOWHERE = "192.0.2.1"  # RFC 5737, never routed on: a datagram socket connected there tells the default interface


def shared_address(nodes: Sequence[str]) -> tuple[str | None, str]:
    """(interface, IPv4 address) of this host on the interface by which it reaches the other nodes.

    Args:
        nodes: names or addresses of the other nodes; empty for a job on one node.

    The interface is None when no interface has that as its first address. Nodes that resolve to this host's loopback
    (several nodes on one machine) meet on its main address: Ray does not run on loopback.

    RETOOL_INTERFACE names the interface instead, several by commas where nodes differ.

    Raises:
        UserError: a node's name does not resolve, the others are reached by different addresses of this host, or no
            interface of the names given has an address.
    """
    if named := named_interface():
        return named
    addresses = {_source_address(resolve(node)) for node in nodes}
    addresses = {address for address in addresses if not address.startswith("127.")}
    if len(addresses) > 1:
        raise UserError(
            f"this node reaches the others from several addresses ({', '.join(sorted(addresses))}): no interface is "
            "shared by all nodes."
        )
    address = addresses.pop() if addresses else main_address()
    return interface_of(address), address


def named_interface() -> tuple[str, str] | None:
    """(interface, IPv4 address) of the first interface of RETOOL_INTERFACE that this host has; None where it is not
    set. Raises UserError where this host has none of them."""
    names = [name.strip() for name in os.environ.get("RETOOL_INTERFACE", "").split(",")]
    if not any(names):
        return None
    addresses = {name: [a.address for a in own if a.family == socket.AF_INET] for name, own in interfaces().items()}
    chosen = next((name for name in names if addresses.get(name)), None)
    if chosen is None:
        there = ", ".join(name for name in addresses if addresses[name])
        raise UserError(
            f"RETOOL_INTERFACE={','.join(names)}: {host()} has none with an IPv4 address of that name, but {there}."
        )
    return chosen, addresses[chosen][0]


def main_address() -> str:
    """The address by which this host reaches others; 127.0.0.1 without any route."""
    try:
        return _source_address(_NOWHERE)
    except OSError:
        return "127.0.0.1"


def resolve(node: str) -> str:
    """The IPv4 address of a node's name."""
    try:
        return socket.gethostbyname(node)
    except OSError as error:
        raise UserError(f"the node {node} has no address here ({error.strerror or error}).") from error


def places(nodes: Sequence[str]) -> list[int]:
    """Return for each node how many of those before it are on the same machine: 0 on a real cluster. The first is this
    host.

    With RETOOL_INTERFACE, names need not resolve (NodeName may be in no DNS): a name that does not is a machine of its
    own. Raises UserError when a name does not resolve and RETOOL_INTERFACE is not set.
    """
    own = {one.address for addresses in interfaces().values() for one in addresses}
    seen, earlier = Counter(own=1), [0]
    for address in map(_machine, nodes[1:]):
        machine = "own" if address.startswith("127.") or address in own else address
        earlier.append(seen[machine])
        seen[machine] += 1
    return earlier


def _machine(node: str) -> str:
    """The address of a node, its name where it has none and needs none."""
    try:
        return resolve(node)
    except UserError:
        if not os.environ.get("RETOOL_INTERFACE"):
            raise
        return node


def interface_of(address: str) -> str | None:
    """The interface whose first IPv4 address this is."""
    for name, addresses in interfaces().items():
        if next((one.address for one in addresses if one.family == socket.AF_INET), None) == address:
            return name
    return None


def nccl_env(interface: str | None, infiniband: Path = _INFINIBAND) -> dict[str, str]:
    """Return the variables that NCCL and Gloo need about this node's network; empty where they find it themselves.

    Only InfiniBand adapters with an active port are named: otherwise NCCL also opens those that are not cabled, and
    Ethernet adapters that serve the storage.
    """
    env = {}
    if interface is not None:
        env |= {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface}  # "=": exactly this name
    adapters = sorted(
        {
            port.parent.parent.name
            for port in infiniband.glob("*/ports/*")
            if _word(port / "link_layer") == "InfiniBand" and "ACTIVE" in _word(port / "state")
        }
    )
    if adapters:
        env["NCCL_IB_HCA"] = "=" + ",".join(adapters)
    return env


def host() -> str:
    """The name of this node for messages: Slurm's, else the host's."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def free_base_port(job_id: int, count: int) -> int:
    """The first of `count` consecutive ports that are free on this host, all below the ephemeral range.

    The same job gets the same ports; when one of them is taken, the next place is tried.

    Raises:
        UserError: there are none.
    """
    end = min(first_ephemeral(), 65_536)
    places = (end - FIRST_PORT) // count
    for attempt in range(places):
        base = FIRST_PORT + (job_id + attempt) % places * count
        if not busy_ports(range(base, base + count)):
            return base
    raise UserError(f"no {count} consecutive ports from {FIRST_PORT} to {end - 1} are free on this node.")


def busy_ports(ports: Iterable[int]) -> list[int]:
    """Return those of `ports` on which this host cannot listen."""
    busy = []
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            # Connections of an earlier attempt that are still winding down do not keep a server from listening.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                busy.append(port)
    return busy


def _source_address(target: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, 9))  # of a datagram socket: sends nothing, only picks the route
        return probe.getsockname()[0]


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
