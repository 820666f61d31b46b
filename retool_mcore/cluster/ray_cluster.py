"""Ray over the nodes of a job: the head here, one worker a node by one srun step, ready when all nodes and GPUs are in.

Nothing sleeps and hopes: a small process of its own joins the head as a driver and says who is there, until all are or
the deadline passes. It is a process because a driver that loses its head ends itself.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from retool_mcore import temporary
from retool_mcore.backends.env import job_secret
from retool_mcore.cluster.node import LABEL, NODE_PORTS, node_command
from retool_mcore.files import tail, write_atomically
from retool_mcore.runner import processes
from retool_mcore.runner.stage_log import ANSI, killed_by

MOST_OUTPUT = 1 << 20  # bytes of Ray's log that are read for a cause
STOP_S = 25.0  # the supervisors of node.py need up to their grace and the kill


class ClusterFailed(Exception):
    """Ray did not come up in time, or ended before the stage. The message names the nodes."""


@dataclass
class RayCluster:
    address: str  # host:port
    log: Path
    nodes: Sequence[str]
    secret: Mapping[str, str]
    parts: dict[str, subprocess.Popen] = field(default_factory=dict)
    begin: int = 0  # of the log, in bytes: what comes before is an earlier start's

    def stage_env(self) -> dict[str, str]:
        """Return the variables that a stage needs to join the cluster."""
        return {"RAY_ADDRESS": self.address, **self.secret}

    def fault(self) -> str | None:
        """Return what broke, as a sentence, when a part of the cluster has ended; None while all run."""
        for name, process in self.parts.items():
            if (code := process.poll()) is not None:
                how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
                return f"Ray's {name} ended ({how}){_last_words(self._output())}; its log: {self.log}"
        return None

    def ending(self) -> str | None:
        """Return what broke when a part is about to end: it first ends the workers of its node, which may take longer
        than the stage needs to fail over them."""
        killed = _killed(self._output())
        return f"Ray's {killed}; its log: {self.log}" if killed else None

    def _output(self) -> str:
        written = tail(self.log, MOST_OUTPUT, self.begin) if self.log.exists() else b""
        return ANSI.sub("", written.decode(errors="replace"))


def _last_words(text: str) -> str:
    messages = [line.removeprefix("retool: ") for line in text.splitlines() if line.startswith("retool: ")]
    if messages:
        return f": {messages[-1]}"
    if killed := _killed(text):
        return f": its {killed}"
    ended = re.findall(r"^srun: error: (\S+): task.*", text, re.MULTILINE)
    return f" on {', '.join(dict.fromkeys(ended))}" if ended else ""


def _killed(text: str) -> str:
    """Which of its processes `ray start --block` reports as killed; SIGTERM is how it ends them itself."""
    reports = ((name, -int(code)) for name, code in re.findall(r"(\w++)\S* \[exit code=(-\d+)\]", text))
    return next((f"{name} was {killed_by(number)}" for name, number in reports if number != signal.SIGTERM), "")


def ports_needed(places: Sequence[int]) -> int:
    """Consecutive ports for nodes of these places (network.places): one node's, whatever their number, on a cluster."""
    return NODE_PORTS * (1 + max(places))


@contextmanager
def ray_cluster(
    nodes: Sequence[str],
    resources: Mapping[str, int | None],
    *,
    head_address: str,
    base_port: int,
    places: Sequence[int],
    deadline_s: float,
    srun: Callable[[Sequence[str], Sequence[str]], list[str]],
    env: Mapping[str, str],
    mark: str,
    log: Path,
) -> Iterator[RayCluster]:
    """A Ray cluster over `nodes`, the first being this one; gone from every node afterwards.

    Args:
        resources: gpus, cpus and object_store_bytes that Ray gets on every node; None: what it finds.
        head_address: this node's address on the interface that all nodes share.
        base_port: first of `ports_needed` free ports.
        places: network.places of all nodes.
        srun: (options of a step, command) -> the command line.
        env: environment of Ray on every node.
        mark: unique word of the job, with which its processes and folders are found again.
        log: takes Ray's output while it starts and stops; the folder next to it, without its suffix, what its parts and
            workers wrote on each node.

    Raises:
        ClusterFailed: not all nodes came within `deadline_s`, or a part ended at once.
    """
    others = list(nodes[1:])
    secret = job_secret()  # not a token in somebody's home folder
    begin = log.stat().st_size if log.exists() else 0
    cluster = RayCluster(f"{head_address}:{base_port}", log, nodes, secret, begin=begin)
    log.parent.mkdir(parents=True, exist_ok=True)
    common = {"mark": mark, "base_port": base_port, "resources": {**resources}, "places": [*places]}
    common["logs"] = str(log.with_suffix(""))
    env = {name: value for name, value in env.items() if name not in (processes.STAGE_ID, "RAY_ADDRESS")} | secret
    env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = "0"  # on SIGTERM nothing is left to drain: the stage is over
    deadline = time.monotonic() + deadline_s
    probe = None
    try:
        head = node_command("ray", **common, index=0, address=head_address, others=others)
        cluster.parts["head"] = processes.start(head, env, log)
        probe = Probe(cluster.address, env)
        await_nodes(cluster, probe, 1, resources["gpus"], deadline, deadline_s)
        if others:
            step = [f"--nodes={len(others)}", f"--ntasks={len(others)}", f"--nodelist={','.join(others)}"]
            step += ["--ntasks-per-node=1", "--kill-on-bad-exit=1"]
            join = node_command("ray", **common, head=cluster.address, others=[head_address])
            cluster.parts["step on the other nodes"] = processes.start(srun(step, join), temporary.inherited(env), log)
            await_nodes(cluster, probe, len(nodes), resources["gpus"] * len(nodes), deadline, deadline_s)
        probe.close()
        yield cluster
    finally:
        if probe is not None:
            probe.close()
        processes.end([*reversed(cluster.parts.values())], STOP_S)  # the supervisors hand SIGTERM on


class Probe:
    """A driver next to this process, which writes the cluster's nodes into a file whenever they change."""

    def __init__(self, address: str, env: Mapping[str, str]) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="retool-nodes-", dir=env.get("TMPDIR"))
        self.path = Path(self.folder.name) / "nodes.json"
        command = [sys.executable, "-m", "retool_mcore.cluster.ray_cluster", address, str(self.path)]
        nowhere = subprocess.DEVNULL
        self.process = subprocess.Popen(command, env=dict(env), stdin=nowhere, stdout=nowhere, stderr=nowhere)

    def nodes(self) -> list[dict]:
        """The living nodes, as last reported: name and gpus of each."""
        return json.loads(self.path.read_text()) if self.path.exists() else []

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()


def await_nodes(cluster: RayCluster, probe: Probe, count: int, gpus: float, deadline: float, deadline_s: float) -> None:
    living: list[dict] = []
    while len(living) < count or sum(node["gpus"] for node in living) < gpus:
        if fault := cluster.fault():
            raise ClusterFailed(fault)
        if probe.process.poll() is not None:
            raise ClusterFailed(f"Ray's head at {cluster.address} refused a driver; its log: {cluster.log}")
        if time.monotonic() > deadline:
            there = {node["name"] for node in living}
            late = [node for node in cluster.nodes if node not in there] or list(cluster.nodes)
            present = sum(node["gpus"] for node in living)
            raise ClusterFailed(
                f"Ray was not complete after {deadline_s:.0f} s: {len(living)} of {len(cluster.nodes)} nodes with "
                f"{present:g} GPUs are in, missing: {', '.join(late)}; its log: {cluster.log}"
            )
        time.sleep(0.3)
        living = probe.nodes()


def report_nodes(address: str, path: Path) -> None:
    """The probe's process: writes the living nodes whenever they change, as long as its parent lives."""
    import ray

    parent, reported = os.getppid(), None
    host, _, port = address.rpartition(":")
    while os.getppid() == parent:
        try:
            if not ray.is_initialized():
                # First of all: ray.init waits long for a head that is not up.
                socket.create_connection((host, int(port)), 1.0).close()
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            living = [node for node in ray.nodes() if node["Alive"]]
        except (OSError, RuntimeError):
            living = []
        nodes = [{"name": node["Labels"].get(LABEL, ""), "gpus": node["Resources"].get("GPU", 0)} for node in living]
        nodes.sort(key=lambda node: node["name"])
        if nodes != reported:
            write_atomically(path, json.dumps(nodes))
            reported = nodes
        time.sleep(0.3)


if __name__ == "__main__":
    report_nodes(sys.argv[1], Path(sys.argv[2]))
