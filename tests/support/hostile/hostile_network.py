"""Programs that want to talk: to services of the host on loopback, to the world, to each other."""

from tests.support.hostile.hostile_case import (
    BELOW_NAMESPACES,
    ERROR,
    KILLED,
    PROCESS_ONLY,
    SUCCESS,
    SYSCALL,
    Case,
    attempts,
)

# Slurm's, Ray's, TensorBoard's, vLLM's and the batch system's usual ports.
PORTS = (6817, 6818, 6819, 6379, 8265, 10001, 6006, 8000, 8080, 22, 111, 2049, 8888, 9090, 29500)
UDP = PROCESS_ONLY
ECHO = "import socket"
WELL_KNOWN = """
import socket
for port in {ports}:
    for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0"):
        try:
            socket.create_connection((host, port), timeout=0.2).close()
        except OSError as error:
            continue
        print("ESCAPED", host, port)
print("nobody")
"""
UNIX_SOCKETS = """
import glob, socket
found = [p for top in ("/run", "/tmp", "/var/run", "/dev/shm") for depth in ("*", "*/*") for p in glob.glob(f"{top}/{depth}")[:500]]
for path in ["/run/docker.sock", "/run/munge/munge.socket.2", "/run/dbus/system_bus_socket", "/run/systemd/private",
             "/run/slurmd.socket", "/tmp/ray/session_latest/sockets/raylet", "/run/containerd/containerd.sock", *found]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            s = socket.socket(socket.AF_UNIX, kind)
            s.connect(path)
        except OSError:
            continue
        print("ESCAPED", path)
print("nobody")
"""
LISTEN = """
import socket, time
kept = []
for name in ("\\0{token}-pair", "{where}/{token}-pair"):
    try:
        s = socket.socket(socket.AF_UNIX)
        s.bind(name)
        s.listen()
        s.setblocking(False)
        kept.append(s)
    except OSError:
        pass
try:
    s = socket.create_server(("127.0.0.1", {pair_port}))
    s.setblocking(False)
    kept.append(s)
except OSError:
    pass
met = False
for _ in range(60):
    time.sleep(0.01)
    for s in kept:
        try:
            s.accept()
            met = True
        except OSError:
            pass
import os
try:
    os.unlink("{where}/{token}-pair")
except OSError:
    pass
print("unharmed" if not met else "met")
"""
MEET = """
import socket, time
for _ in range(30):
    for family, name in {names}:
        try:
            s = socket.socket(family)
            s.settimeout(0.1)
            s.connect(name)
        except OSError:
            continue
        print("ESCAPED", name)
    time.sleep(0.01)
print("tried")
"""
LEFT = """
import socket, os
s = socket.socket(socket.AF_UNIX)
try:
    s.bind("\\0{token}-left")
    s.listen()
    if os.fork() == 0:
        os.setsid()
        import time
        time.sleep(600)
except OSError as error:
    print(error.errno)
print("left")
"""
INTERFACES = """
import socket, os
names = [name for _, name in socket.if_nameindex()]
print(*(["ESCAPED", *names] if set(names) - {"lo"} else ["alone"]))
"""
PASSED = """
import array, socket, os
a, b = socket.socketpair()
kept = 0
for fd in range(3, 256):
    try:
        socket.send_fds(a, [b"x"], [fd])
        kept += 1
    except OSError:
        pass
print("kept" if kept <= 8 else "ESCAPED")
"""


def meeting(names: str, where: str = "/tmp") -> dict:
    neighbour = LISTEN.replace("{where}", where).replace("{pair_port}", "47613")
    return {"source": MEET.replace("{names}", names), "neighbour": neighbour, "slow": True}


CASES = [
    attempts(
        "loopback_port",
        ECHO,
        "socket.create_connection(('127.0.0.1', {port}), timeout=1)",
        "socket.create_connection(('localhost', {port}), timeout=1)",
        "socket.create_connection(('0.0.0.0', {port}), timeout=1)",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "loopback_non_blocking",
        ECHO + "\ns = socket.socket()\ns.setblocking(False)\nimport time, select",
        "1 // (s.connect_ex(('127.0.0.1', {port})) in (0, 115) and not s.getsockopt(1, 4) and bool(select.select([], [s], [], 0.2)[1]) and not s.getsockopt(1, 4))",
        statuses=SUCCESS | ERROR,  # where there is no such socket at all
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "loopback_fast_open",
        ECHO + "\ns = socket.socket()",
        "s.sendto(b'x', 0x20000000, ('127.0.0.1', {port}))",
        statuses=SUCCESS | ERROR,
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "loopback_mapped_in_ipv6",
        ECHO,
        "socket.create_connection(('::ffff:127.0.0.1', {port}), timeout=1)",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "loopback_udp",
        ECHO + "\nn = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
        "n.sendto(b'x', ('127.0.0.1', {udp}))",
        statuses=SUCCESS | ERROR,
        open_at=UDP,
    ),
    attempts("loopback_udp_lite", ECHO, "socket.socket(2, 2, 136).sendto(b'x', ('127.0.0.1', {udp}))", open_at=UDP),
    attempts(
        "loopback_multipath", ECHO, "socket.socket(2, 1, 262).connect(('127.0.0.1', {port}))", open_at=PROCESS_ONLY
    ),
    attempts("loopback_sctp", ECHO, "socket.socket(2, 1, 132).connect(('127.0.0.1', {port}))", open_at=PROCESS_ONLY),
    attempts(
        "loopback_from_a_child",
        "import subprocess, sys",
        "subprocess.run([sys.executable, '-S', '-c', "
        "\"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=1)\"], check=True, stderr=-3)",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "loopback_http",
        "import urllib.request",
        "urllib.request.urlopen('http://127.0.0.1:{port}/', timeout=0.3)",
        open_at=PROCESS_ONLY,
    ),
    Case("well_known_ports", WELL_KNOWN.replace("{ports}", repr(PORTS)), open_at=PROCESS_ONLY),
    attempts(
        "name_service",
        ECHO,
        "socket.getaddrinfo('example.com', 80)",
        "socket.gethostbyname('example.com')",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "name_service_datagram",
        ECHO,
        "socket.socket(2, 2).sendto(bytes.fromhex('0001010000010000000000000161000001') + b'\\0\\1', ('8.8.8.8', 53))",
        open_at=UDP,
    ),
    attempts(
        "outside",
        ECHO,
        "socket.create_connection(('1.1.1.1', 443), timeout=0.3)",
        "socket.create_connection(('169.254.169.254', 80), timeout=0.3)",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "raw_sockets",
        ECHO,
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)",
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, 255)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 768)",
        "socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58)",
    ),
    attempts(
        "odd_families",
        ECHO,
        *[
            f"socket.socket({family}, {kind}, {protocol})"
            for family, kind, protocol in (
                (38, 5, 0),
                (40, 1, 0),
                (44, 3, 0),
                (17, 3, 0),
                (29, 3, 1),
                (31, 3, 1),
                (21, 5, 0),
                (30, 2, 0),
                (15, 3, 2),
            )
        ],
        open_at=BELOW_NAMESPACES
        | {"namespaces": "a crypto, vsock or other socket reaches no data of others; the seccomp filter decides"},
    ),
    attempts(
        "netlink",
        ECHO,
        "socket.socket(16, 3, 4)",
        "socket.socket(16, 3, 9)",
        "socket.socket(16, 3, 15).bind((0, 1))",
        "socket.socket(16, 3, 12)",
        open_at=BELOW_NAMESPACES | {"namespaces": "netlink speaks only for the run's own empty network namespace"},
    ),
    Case("interfaces", INTERFACES, SUCCESS | frozenset({"error"}), open_at=BELOW_NAMESPACES),
    attempts(
        "unix_path_socket",
        ECHO + "\ns = socket.socket(socket.AF_UNIX)",
        "s.connect('{unix}')",
        open_at=BELOW_NAMESPACES,
    ),
    attempts(
        "unix_abstract_socket",
        ECHO + "\ns = socket.socket(socket.AF_UNIX)",
        "s.connect('\\0{abstract}')",
        open_at=PROCESS_ONLY,
    ),
    attempts(
        "unix_abstract_datagram",
        ECHO + "\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)",
        "s.sendto(b'x', '\\0{abstract}')",
        open_at=PROCESS_ONLY,
    ),
    Case("unix_sockets_of_the_host", UNIX_SOCKETS, open_at=BELOW_NAMESPACES),
    Case("unix_abstract_left", LEFT, stdout=None),
    Case("two_runs_meet_abstract", **meeting("[(socket.AF_UNIX, '\\0{token}-pair')]"), open_at=PROCESS_ONLY),
    Case("two_runs_meet_path", **meeting("[(socket.AF_UNIX, '/tmp/{token}-pair')]"), open_at=PROCESS_ONLY),
    Case(
        "two_runs_meet_shm_path",
        **meeting("[(socket.AF_UNIX, '/dev/shm/{token}-pair')]", "/dev/shm"),
        open_at=PROCESS_ONLY,
    ),
    Case("two_runs_meet_port", **meeting("[(socket.AF_INET, ('127.0.0.1', 47613))]"), open_at=PROCESS_ONLY),
    attempts(
        "port_bound_below_1024",
        ECHO,
        "socket.create_server(('0.0.0.0', 81))",
        open_at=PROCESS_ONLY
        | {"namespaces": "binding is possible in an empty network namespace that nobody else is in"},
    ),
    Case(
        "descriptors_in_flight",
        "import socket, os\na, b = socket.socketpair()\ntry:\n    for _ in range(100_000): socket.send_fds(a, [b'x'], [0] * 200)\n"
        "except OSError as error: print('stopped', error.errno)",
        SUCCESS | KILLED,
        slow=True,
        timeout_s=2,
    ),
    Case("descriptors_inherited", PASSED),
    Case(
        "socket_by_number",
        SYSCALL
        + "fd = call(41, 2, 1, 0)\nimport struct\naddress = ctypes.create_string_buffer(struct.pack('=HHI8x', 2, ({port} >> 8) | (({port} & 255) << 8), 0x0100007f))\n"
        "refused('connect', 42, fd, address, 16)",
        SUCCESS | KILLED,
        open_at=PROCESS_ONLY,
    ),
]
