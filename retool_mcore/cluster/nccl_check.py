"""Do the devices of all nodes add up, and how fast? A torchrun script: all-reduces inside each node, between
neighbouring nodes, and over all ranks, so that a link that is slow or hangs is named before a step waits on it.

It imports nothing of the stages: what fails here is the network or a device. With the device "cpu" it runs over gloo.
torch is imported where it is used: the first node's launcher only wants the command.
"""

import functools
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from retool_mcore.runner import processes

if TYPE_CHECKING:
    import torch.distributed as dist

MESSAGE_BYTES = {"cuda": 64 * 2**20, "cpu": 4 * 2**20}
BACKEND = {"cuda": "nccl", "cpu": "gloo"}
REPEATS = 10
WARM_UP = 3
DEADLINE_S = 120.0
JOIN_TIMEOUT_S = 120
KILL_S = 10.0  # between SIGTERM and SIGKILL to a step that Slurm does not start
TURN_S = 0.2
say = functools.partial(print, flush=True)
OVERALL = "all nodes together"
FAILED = "the all-reduce over the nodes failed: the lines above name where."
COMPLAINTS = ("no end after", "exclude the node", "exclude a node")  # words of the lines that name what failed


def nccl_command(config: Mapping[str, Any], *, address: str, port: int, deadline_s: float = DEADLINE_S) -> list[str]:
    """The command that each node runs (srun, one task a node): torchrun of this module over all devices of `config`.

    Args:
        address, port: where the ranks meet: the first node's address that the others reach, and a free port there.
        deadline_s: a check that takes longer hangs: it names where and ends with 1.

    Exit code 0: sums right, and `parallel.min_bus_bandwidth_gbs` reached where it is set.
    """
    layout = config["parallel"]
    arguments = {"device": layout["device"], "deadline_s": deadline_s, "floor_gbs": layout.get("min_bus_bandwidth_gbs")}
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={layout['nodes']}"]
    command += [f"--nproc_per_node={layout['gpus_per_node']}", "--rdzv_backend=c10d", "--rdzv_id=nccl_check"]
    command += [f"--rdzv_endpoint={address}:{port}", f"--rdzv_conf=join_timeout={JOIN_TIMEOUT_S}"]
    return [*command, "-m", "retool_mcore.cluster.nccl_check", json.dumps(arguments)]


def unfit_nodes(
    config: Mapping[str, Any],
    srun: Callable[[Sequence[str], Sequence[str]], list[str]],
    names: Sequence[str],
    *,
    address: str,
    port: int,
    deadline_s: float = DEADLINE_S,
) -> list[str] | None:
    """Runs the check on all nodes of `config`, its lines on our output.

    Args:
        srun: makes the command line of a job step from its options and its command.
        names: of the nodes.
        address, port: as for `nccl_command`.
        deadline_s: of each rank. A step that Slurm cannot start at all is ended later by JOIN_TIMEOUT_S.

    Returns:
        None when the sums and the bandwidth are good, else the nodes that the first complaint names; [] when it names
        none.
    """
    nodes = config["parallel"]["nodes"]
    command = nccl_command(config, address=address, port=port, deadline_s=deadline_s)
    step = srun([f"--nodes={nodes}", f"--ntasks={nodes}"], command)
    complaint = ""
    with subprocess.Popen(
        step, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        timer = threading.Timer(deadline_s + JOIN_TIMEOUT_S, processes.end, ([process], KILL_S))
        timer.daemon = True
        timer.start()
        for line in process.stdout:
            say(line, end="")
            if not complaint and any(words in line for words in COMPLAINTS):
                complaint = line
        process.wait()
        timer.cancel()
    if process.returncode == 0:
        return None
    return [name for name in names if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", complaint)]


def phases(nodes: Sequence[str], per_node: int) -> list[tuple[str, list[int]]]:
    """(words, ranks) of every all-reduce, in an order in which no rank waits for two at once.

    Neighbours exchange through the first rank of each node; even pairs before odd ones, so that they overlap.
    """
    groups = []
    if per_node > 1:
        groups = [(f"inside {node}", list(range(i * per_node, (i + 1) * per_node))) for i, node in enumerate(nodes)]
    pairs = [(i, i + 1) for i in range(len(nodes) - 1)]
    for i, j in pairs[::2] + pairs[1::2]:
        groups.append((f"between {nodes[i]} and {nodes[j]}", [i * per_node, j * per_node]))
    if len(nodes) > 1 or per_node > 1:
        groups.append((OVERALL, list(range(len(nodes) * per_node))))
    return groups


def verdict(measured: Mapping[str, float], floor_gbs: float | None) -> str:
    """Return what is wrong with the bandwidths (GB/s by phase), "" when nothing is. The floor is for all nodes
    together."""
    overall = measured.get(OVERALL, math.inf)
    if floor_gbs is None or overall >= floor_gbs:
        return ""
    # Inside a node NVLink is ten times faster than the network: what is slow for its kind counts.
    kinds = [{w: s for w, s in measured.items() if w.startswith(kind)} for kind in ("between", "inside")]
    slowest = "; ".join(f"slowest {min(kind, key=kind.get)}, {min(kind.values()):.2f} GB/s" for kind in kinds if kind)
    return (
        f"all-reduce over all nodes runs at {overall:.2f} GB/s, below parallel.min_bus_bandwidth_gbs={floor_gbs:g} "
        f"({slowest}): have the link looked at, exclude a node, or give a lower one with "
        "parallel.min_bus_bandwidth_gbs=GBS (null: report only)."
    )


def measure(group: "dist.ProcessGroup", ranks: int, device: str) -> float:
    """Bus bandwidth in GB/s (1e9) of an all-reduce of one message over `group`: over the slowest link go 2 (n - 1) / n
    times the bytes (nccl-tests, PERFORMANCE.md). ValueError when the sum is wrong."""
    import torch
    import torch.distributed as dist

    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    size = MESSAGE_BYTES[device]
    message = torch.full((size // 4,), dist.get_rank(group) + 1, dtype=torch.float32, device=device)
    dist.all_reduce(message, group=group)
    if wrong := int((message != ranks * (ranks + 1) / 2).sum()):
        raise ValueError(f"{wrong} of {len(message)} sums are wrong")
    message.zero_()  # sums of sums would overflow
    for repeat in range(WARM_UP + REPEATS):
        if repeat == WARM_UP:
            synchronise()
            start = time.perf_counter()
        dist.all_reduce(message, group=group)
    synchronise()
    return 2 * (ranks - 1) / ranks * size * REPEATS / (time.perf_counter() - start) / 1e9


def run(device: str, deadline_s: float, floor_gbs: float | None) -> int:
    """Run one rank's part. Rank 0 prints the bandwidths; 1 when they are below the floor."""
    import torch
    import torch.distributed as dist

    rank, world, per_node = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    at = [(0, f"did not meet the others at {address}:{port}")]  # phases that are done, and where this rank is

    def end() -> None:
        turn, words = at[-1]
        time.sleep(TURN_S * turn)  # ranks of later phases wait for one in the earliest, which tells first
        say(f"nccl_check: no end after {deadline_s:.0f} s: rank {rank} on {name} {words}")
        os._exit(1)  # a stuck collective cannot return

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    timeout = timedelta(seconds=2 * deadline_s)
    dist.init_process_group(BACKEND[device], timeout=timeout)
    at.append((0, "is stuck setting up groups"))
    # The report goes through the store: the first all-reduces must be those that name a link.
    store = dist.PrefixStore("nccl_check", dist.TCPStore(address, port, is_master=False, timeout=timeout))
    store.set(f"name/{rank}", name)
    plan = phases([store.get(f"name/{first}").decode() for first in range(0, world, per_node)], per_node)
    groups = [dist.new_group(ranks) for _, ranks in plan]  # every rank takes part in making every group
    for turn, ((words, ranks), group) in enumerate(zip(plan, groups, strict=True)):
        if rank in ranks:
            at.append((turn, f"is stuck: {words}"))
            try:
                speed = measure(group, len(ranks), device)
            except (ValueError, RuntimeError) as error:  # a wrong sum, or the other end is gone
                reason = str(error).partition("\n")[0]
                say(f"nccl_check: {words}: {reason} on rank {rank} ({name}): exclude the node, or have it looked at")
                return 1
            if rank == ranks[0]:
                store.set(words, repr(speed))
    at.append((len(plan), "waits for the others' figures"))
    measured = {words: float(store.get(words)) for words, _ in plan}
    dist.barrier()  # nobody leaves, and takes the store with it, while another still reads
    timer.cancel()
    message = verdict(measured, floor_gbs)
    for words, speed in measured.items() if rank == 0 else ():
        say(f"nccl_check: {words}: {speed:.2f} GB/s")
    if message and rank == 0:
        say(f"nccl_check: {message}")
    dist.destroy_process_group()
    return bool(message)


if __name__ == "__main__":
    sys.exit(run(**json.loads(sys.argv[1])))
