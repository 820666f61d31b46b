"""The process that srun starts on each node of a job: a part of the Ray cluster, or one node's share of a torchrun
stage.

Both run under a supervisor that stays to the end and leaves nothing of its part on its node, however it ends: raylets
and trainers start sessions of their own, which not every Slurm finds again. `sweep` is for a node whose supervisor was
killed.
"""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore import python_path, temporary
from retool_mcore.backends.env import SETTINGS
from retool_mcore.cluster import network
from retool_mcore.errors import UserError
from retool_mcore.files import allow_open_files, own_folder, private_files, tail
from retool_mcore.runner import processes, template
from retool_mcore.runner.launch import stage_command
from retool_mcore.runner.stage_log import NODE_LINE, killed_by
from retool_mcore.runner.watchdog import dump_stacks

WORKER_PORTS = 630  # of one node: every process that Ray starts there listens on one
# Options of `ray start` that are ports: of every node, and of the head alone.
SERVICES = (
    "node-manager-port",
    "object-manager-port",
    "runtime-env-agent-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "metrics-export-port",
)
HEAD_SERVICES = ("port", "ray-client-server-port", "dashboard-port")
NODE_PORTS = len(SERVICES) + len(HEAD_SERVICES) + WORKER_PORTS
# Slurm sets these in addition to CUDA_VISIBLE_DEVICES on any node with GPUs; verl's workers refuse both together.
FOREIGN = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
LABEL = "slurm-node"  # Ray's own names are addresses
MOST_LOG = 1 << 20  # bytes of one of Ray's files
GRACE_S = 12.0  # less than the time that Slurm (KillWait) and our own launcher give


def node_mark(mark: str, index: int) -> str:
    """The RETOOL_STAGE_ID of one node's part; of its own, since two nodes of a test cluster may be one machine."""
    return f"{mark}-node{index}"


def node_command(part: str, **given: object) -> list[str]:
    """The command that runs a part on a node: a function below, with what it takes."""
    return [sys.executable, "-m", "retool_mcore.cluster.node", part, json.dumps(given)]


def ray_folder(mark: str, index: int) -> Path:
    """Ray's folder on a node. Short and local: a socket's path below it must stay under 108 bytes."""
    return Path("/tmp") / f"ray-{node_mark(mark, index)}"


def spill_folder(mark: str, index: int) -> Path:
    """Return the folder for objects that do not fit into the node's memory: a large local disk, which /tmp need not
    be."""
    return Path(tempfile.gettempdir()) / f"ray-spilled-{node_mark(mark, index)}"


def ray_ports(base: int, index: int, place: int) -> dict[str, int]:
    """Ray's port options for node `index` of the cluster whose ports begin at `base`; `place`: see network.places."""
    first = base + place * NODE_PORTS
    names = (*HEAD_SERVICES, *SERVICES) if index == 0 else SERVICES
    ports = {name: first + place for place, name in enumerate(names)}
    workers = first + len(HEAD_SERVICES) + len(SERVICES)
    return ports | {"min-worker-port": workers, "max-worker-port": workers + WORKER_PORTS - 1}


def ray_service_ports(base: int, places: Sequence[int]) -> list[int]:
    """Return the ports that the nodes of these places listen on, without those of their worker processes."""
    ports = {item for index, place in enumerate(places) for item in ray_ports(base, index, place).items()}
    return sorted({port for name, port in ports if not name.endswith("worker-port")})


def ray_command(
    index: int,
    address: str,
    base: int,
    folder: Path,
    spilled: Path,
    *,
    gpus: int,
    cpus: int | None = None,
    object_store_bytes: int | None = None,
    head: str | None = None,
    place: int = 0,
) -> list[str]:
    """`ray start` for one node: of the head when `head`, its address, is None, else of a node that joins it."""
    options: dict[str, object] = {
        "node-ip-address": address,
        "num-gpus": gpus,
        "temp-dir": folder / "r",  # Ray opens it to everybody
        "object-spilling-directory": spilled,
        "labels": f"{LABEL}={network.host()}",
    }
    options |= {"num-cpus": cpus, "object-store-memory": object_store_bytes, "address": head}
    options |= ray_ports(base, index, place)
    if head is None:
        options["include-dashboard"] = os.environ.get("RETOOL_RAY_DASHBOARD", "false")
    flags = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats", *flags] + (
        ["--head"] if head is None else []
    )


def node_env(index: int, interface: str | None, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a node's part: ours, with what NCCL must know of the network where we do not say."""
    foreign = FOREIGN if index == 0 else {*FOREIGN, *template.VARIABLES}  # the job's template is the first node's
    kept = {name: value for name, value in env.items() if name not in foreign or value in SETTINGS}
    return network.nccl_env(interface) | kept


def supervise(
    command: Sequence[str],
    env: Mapping[str, str],
    mark: str,
    name: str = "its command",
    grace_s: float = GRACE_S,
    log: Path | None = None,
) -> int:
    """Runs `command` to its end, or until SIGTERM, SIGINT or the end of Slurm's process above; afterwards no process
    with `mark` is left here.

    A line for stage_log.py reports what was killed: `name` is what it calls the command; `log` takes it where nobody
    above is left to hand our output on. Returns the exit code as a shell would give it.
    """
    received: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda number, _: received.append(number))
    processes.signal_at_parents_death(signal.SIGHUP)
    process = processes.start(list(command), {**env, processes.STAGE_ID: mark})
    known: set[processes.Process] = set()
    while not received:
        try:
            process.wait(2.0)
            break
        except subprocess.TimeoutExpired:
            known |= processes.find(mark, known)
    code = process.returncode
    if not received and code < 0:
        print(f"{NODE_LINE}{name} on {network.host()} was {killed_by(-code)}", flush=True)
    if signal.SIGHUP in received and log is not None:
        with log.open("a") as file:
            file.write(f"{NODE_LINE}slurmstepd on {network.host()}, which starts {name}, is gone\n")
    processes.stop(mark, known, leader=process, grace_s=grace_s)
    if received:
        return 128 + received[0]
    return code if code >= 0 else 128 - code


def ray(
    mark: str,
    base_port: int,
    resources: dict[str, int | None],
    places: Sequence[int],
    logs: str,
    others: Sequence[str] = (),
    index: int | None = None,
    address: str | None = None,
    head: str | None = None,
) -> int:
    """This node's part of the Ray cluster.

    Args:
        resources: gpus, cpus and object_store_bytes, as for `ray_command`.
        places: network.places of all nodes.
        logs: the folder, on a path that all nodes see, that keeps what Ray wrote here.
        others: nodes to reach.
        index: 0 on the head; None: from SLURM_PROCID, the head being no task.
        address: of this node; None: that by which it reaches the others.
        head: address:port of the head.
    """
    index = 1 + int(os.environ["SLURM_PROCID"]) if index is None else index
    folder = ray_folder(mark, index)
    interface, own = network.shared_address(others)
    ports = ray_ports(base_port, index, place := places[index])
    if busy := network.busy_ports(port for name, port in ports.items() if not name.endswith("worker-port")):
        raise UserError(f"port {busy[0]}, which Ray needs on {network.host()}, is in use there.")
    env = node_env(index, interface)
    own_folder(folder)
    own_folder(spilled := spill_folder(mark, index))
    head = None if index == 0 else head
    command = ray_command(index, address or own, base_port, folder, spilled, **resources, head=head, place=place)
    try:
        with template.forked(env, []) as (env, _):
            return supervise(command, env, node_mark(mark, index), "ray start")
    finally:
        keep_logs(folder, Path(logs) / network.host())
        clean(mark, index)
        if index > 0:  # the first node's is still its stage's
            temporary.remove_job_folder()


def clean(mark: str, index: int) -> None:
    for folder in (ray_folder(mark, index), spill_folder(mark, index)):
        shutil.rmtree(folder, ignore_errors=True)


def keep_logs(folder: Path, kept: Path) -> None:
    """The ends of what Ray's parts and workers on this node wrote: `folder` goes, and with it why one of them died."""
    for path in folder.glob("**/session_2*/logs/*"):
        with suppress(OSError):
            if path.is_file() and path.stat().st_size:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / path.name).write_bytes(tail(path, MOST_LOG))


def stage(mark: str, stage: str, config: str, others: Sequence[str]) -> int:
    """This node's share of a stage that torchrun starts."""
    index, path = int(os.environ["SLURM_PROCID"]), Path(config)
    interface, _ = network.shared_address(others)
    env = node_env(index, interface) | {"NODE_RANK": str(index)}
    command = stage_command(stage, OmegaConf.load(path), path, env)
    with template.forked(env, command) as (env, command):
        code = supervise(command, env, node_mark(mark, index), "torchrun", log=path.with_name("log.txt"))
    if code > 128:  # ended from outside: a job that was cancelled starts no sweep
        temporary.remove_job_folder()
    return code


def stacks(mark: str, folder: str) -> int:
    """Writes the Python stacks of this node's processes of a job into a folder of the node's name."""
    marked = node_mark(mark, int(os.environ["SLURM_PROCID"]))
    dump_stacks(processes.find(marked), Path(folder) / network.host())
    return 0


def sweep(mark: str, since: float = math.inf) -> int:
    """Ends what is left of a job on this node. since: when the job began, in seconds since the epoch."""
    index = int(os.environ["SLURM_PROCID"])
    for marked in (node_mark(mark, index), mark):
        processes.stop(marked, grace_s=3.0)
    clean(mark, index)
    temporary.remove_job_folder()
    remove_abandoned(since)
    return 0


def remove_abandoned(since: float, shared: Path = Path("/dev/shm")) -> list[Path]:
    """Remove this user's shared memory that was made `since` then and that no living process uses.

    Engines leave two of Python's shared-memory objects (psm_*, up to 210 MB of a tensor-parallel engine) at every
    start, after a natural end too. Those of another run on the node are in use.

    Args:
        shared: the folder of shared memory.
    """
    used = _mapped(shared)
    removed = []
    for path in shared.glob("psm_*"):
        with suppress(OSError):
            status = path.stat()
            if status.st_uid == os.geteuid() and status.st_ctime >= since and str(path) not in used:
                path.unlink()
                removed.append(path)
    return removed


def _mapped(folder: Path) -> set[str]:
    """The files of a folder that processes have mapped or opened, as far as this user may see."""
    paths = set()
    for process in Path("/proc").glob("[0-9]*"):
        paths |= {line.split()[-1] for line in _read(process / "maps").splitlines() if str(folder) in line}
        with suppress(OSError):
            paths |= {os.readlink(link) for link in (process / "fd").iterdir()}
    return paths


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def main(arguments: Sequence[str]) -> int:
    """`arguments`: one of the functions above, and what it takes, as JSON."""
    parts: dict[str, Callable[..., int]] = {"ray": ray, "stage": stage, "stacks": stacks, "sweep": sweep}
    part, payload = arguments
    try:
        private_files()
        allow_open_files()
        os.environ.update(temporary.variables() | python_path.variables())
        return parts[part](**json.loads(payload))
    except UserError as error:
        print(f"retool: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
