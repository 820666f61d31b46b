"""A real Slurm of two nodes (or more) on this machine: its own daemons, each node in namespaces of its own.

A node has its own process ids, host name, network address, /dev/shm and /tmp/ray, as two machines would, so that what
runs on one can neither reach nor end the other's processes but through the network; files are shared, as on a cluster's
file system. What lives in a node's process namespace is exactly what that node runs: an orphan cannot hide.

By hand, as root, with Debian's slurmctld, slurmd, slurm-client and munge:
    python -m tests.support.slurm.slurm_here up /tmp/slurm     # prints the SLURM_CONF to export
    python -m tests.support.slurm.slurm_here down /tmp/slurm
"""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.support.slurm.slurm_cluster import NODES, Cluster, search_path

GPUS = 8  # a node's fake GPUs: device files that nothing opens
NAMESPACES = ("--pid", "--mount-proc", "--mount", "--uts", "--net", "--ipc")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "ip", "unshare", "nsenter")

SLURM_CONF = """\
ClusterName=retool
SlurmctldHost=ctl({net}.254)
SlurmctldPort={port}
SlurmdPort=6818
AuthType=auth/munge
# Slurm lets a requeued job wait until the credentials of its last start have expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdLogFile={folder}/%n/slurmd.log
SlurmdSpoolDir={folder}/%n/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=2
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=600
FirstJobId={first_job}
SlurmdTimeout=20
CompleteWait=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{more}
"""

# The first process of a node. It stays, so that the node's namespaces outlive a killed slurmd, and reaps what others
# leave behind. A node's network has a route but no way out, and no name server: an attempt to leave fails at once.
NODE_SCRIPT = """\
set -e
hostname {node}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/resolv.conf /etc/resolv.conf
mount -t tmpfs tmpfs /dev/shm
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
touch {folder}/{node}/entered
until ip link show {link} >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip link set {link} name eth0
ip addr add {net}.{number}/24 dev eth0
ip link set eth0 up
ip route add default dev eth0
set +e
slurmd -N {node}
while :; do sleep infinity & wait; done
"""


class CannotStart(Exception):
    """This machine cannot hold the cluster, or a daemon did not come up. The message says which and why."""


def why_not() -> str | None:
    """The reason why no cluster can be started here, in one sentence; None when one can."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=search_path())]:
        return f"Slurm is not installed here: {', '.join(missing)} not found."
    if os.geteuid() != 0:
        return "Slurm's daemons and their namespaces need root."
    if subprocess.run(["unshare", "--fork", *NAMESPACES, "true"], capture_output=True).returncode:
        return "this container may not make namespaces, which the nodes are made of."
    return None


def up(folder: Path, timeout_s: float = 60, nodes: Sequence[str] = NODES, more: str = "") -> Cluster:
    """Starts a cluster whose files lie in `folder` (made if missing) and returns when all of `nodes` (n1, n2, ...) are
    idle. `more`: further lines of slurm.conf.

    Raises:
        CannotStart
    """
    if reason := why_not():
        raise CannotStart(reason)
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    env = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": search_path()}
    munged = _start_munged(folder, env)
    net, bridge = _make_bridge()
    cluster = Cluster(str(folder), bridge, munged, {}, {})
    try:
        _write_files(folder, net, nodes, more)
        for node in nodes:
            start_node(cluster, node)
        start_controller(cluster)
        _wait_idle(cluster, time.monotonic() + timeout_s)
    except BaseException:
        cluster.down()
        raise
    return cluster


def start_controller(cluster: Cluster) -> None:
    """Starts slurmctld, or starts it again after Cluster.stop_controller."""
    folder = cluster.folder
    # Slurm's controller insists on running on a host of the name in its configuration.
    controller = f"hostname ctl; mount --bind {folder}/hosts /etc/hosts; exec slurmctld"
    with Path(folder, "slurmctld.out").open("w") as out:
        subprocess.run(
            ["unshare", "--uts", "--mount", "bash", "-c", controller],
            env=cluster.env(),
            stdout=out,
            stderr=out,
            timeout=30,
        )


def _make_bridge() -> tuple[str, str]:
    """The network that the nodes share with this host: the first three parts of its addresses, and its device."""
    for number in range(1, 255):  # another cluster may run beside this one
        bridge = f"retool{number}"
        device = Path("/sys/class/net", bridge)
        if device.exists():
            continue
        try:
            _ip("link", "add", bridge, "type", "bridge")
        except CannotStart:
            if device.exists():  # another cluster, which starts at the same moment, was first
                continue
            raise
        _ip("addr", "add", f"10.213.{number}.254/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        return f"10.213.{number}", bridge
    raise CannotStart("254 clusters run here already; take some down, or remove their retool* network devices.")


def _write_files(folder: Path, net: str, nodes: Sequence[str], more: str) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    size = f"CPUs=16 Sockets=1 CoresPerSocket=16 ThreadsPerCore=1 RealMemory=100000 Gres=gpu:{GPUS} State=UNKNOWN"
    listed = [f"NodeName={node} NodeAddr={net}.{node[1:]} NodeHostname={node} Port=6818 {size}" for node in nodes]
    # Clusters on this machine share /tmp, where a job's folders have its number.
    first_job = 1 + 1000 * (int(net.rpartition(".")[2]) - 1)
    facts = {"folder": folder, "net": net, "port": port, "first_job": first_job}
    conf = SLURM_CONF.format(nodes="\n".join(listed), more=more, **facts)
    (folder / "slurm.conf").write_text(conf)
    # Nothing here uses control groups, but slurmd wants a plug-in; "disabled" exists since 23.02.
    version = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, env={"PATH": search_path()}).stdout
    old = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (23, 2)
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={'cgroup/v1' if old else 'disabled'}\n")
    lines = []
    for node in nodes:
        (folder / node / "spool").mkdir(parents=True, exist_ok=True)
        for gpu in range(GPUS):
            device = folder / node / f"gpu{gpu}"
            if not device.exists():
                os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))  # as /dev/null
        lines.append(f"NodeName={node} Name=gpu File={folder}/{node}/gpu[0-{GPUS - 1}]\n")
    (folder / "gres.conf").write_text("".join(lines))
    known = "".join(f"{net}.{node[1:]} {node}\n" for node in nodes)
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{known}{net}.254 ctl\n")
    (folder / "resolv.conf").write_text("")
    (folder / "state").mkdir(exist_ok=True)


def _start_munged(folder: Path, env: dict[str, str]) -> int:
    key = folder / "munge.key"
    if not key.exists():
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
    # --force: a temporary folder lies in one that everybody may write to.
    files = {"key-file": key, "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log"}
    files["seed-file"] = "munge.seed"
    command = ["munged", "--force", *(f"--{option}={folder / name}" for option, name in files.items())]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise CannotStart(f"munged did not start: {done.stderr.strip()}")
    return int((folder / "munge.pid").read_text())


def start_node(cluster: Cluster, node: str) -> None:
    """Starts a node, or starts it again after Cluster.lose. Raises CannotStart."""
    folder, number = Path(cluster.folder), node[1:]
    net = f"10.213.{cluster.bridge.removeprefix('retool')}"
    link = f"{cluster.bridge}n{number}"
    (folder / node / "entered").unlink(missing_ok=True)
    script = NODE_SCRIPT.format(node=node, folder=folder, number=number, net=net, link=link)
    with (folder / node / "init.log").open("w") as log:
        holder = subprocess.Popen(
            ["unshare", "--fork", "--kill-child", *NAMESPACES, "bash", "-c", script],
            env=cluster.env(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    cluster.holders[node] = holder.pid
    deadline = time.monotonic() + 30
    while not (folder / node / "entered").exists():
        if holder.poll() is not None or time.monotonic() > deadline:
            raise CannotStart(f"node {node} did not start: {(folder / node / 'init.log').read_text().strip()}")
        time.sleep(0.05)
    cluster.inits[node] = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])
    _ip("link", "add", f"{cluster.bridge}h{number}", "type", "veth", "peer", "name", link)
    _ip("link", "set", f"{cluster.bridge}h{number}", "master", cluster.bridge, "up")
    _ip("link", "set", link, "netns", str(cluster.inits[node]))
    (folder / "cluster.json").write_text(json.dumps(asdict(cluster)))  # for `down` by hand


def _wait_idle(cluster: Cluster, deadline: float) -> None:
    said = ""
    while time.monotonic() < deadline:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "all", "-o", "%t"], env=cluster.env(), capture_output=True, text=True
        )
        if done.stdout.split() == ["idle"] * len(cluster.inits):
            return
        said = done.stdout + done.stderr
        time.sleep(0.2)
    logs = [Path(cluster.folder, name) for name in ("slurmctld.log", *(f"{node}/slurmd.log" for node in cluster.inits))]
    tails = [f"{log}:\n{log.read_text()[-1500:]}" for log in logs if log.is_file()]
    raise CannotStart(f"the nodes are not idle in time: {said}\n" + "\n".join(tails))


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, env={"PATH": search_path()})
    if done.returncode:
        raise CannotStart(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


if __name__ == "__main__":
    action, folder = sys.argv[1:]
    if action == "up":
        print(f"export SLURM_CONF={up(Path(folder)).conf}")
    else:
        Cluster(**json.loads(Path(folder, "cluster.json").read_text())).down()
