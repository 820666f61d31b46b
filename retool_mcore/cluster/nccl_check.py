"""Do the devices of all nodes add up, and how fast? A torchrun script: all-reduces inside each node, between
neighbouring nodes, and over all ranks, so that a link that is slow or hangs is named before a step waits on it.

It imports nothing of the stages: what fails here is the network or a device. With `--device cpu` it runs over gloo.
torch is imported where it is used: the first node's launcher only wants the command.
"""

import argparse
import functools
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MESSAGE_BYTES = {"cuda": 64 * 2**20, "cpu": 4 * 2**20}
BACKEND = {"cuda": "nccl", "cpu": "gloo"}
REPEATS = 10
WARM_UP = 3
DEADLINE_S = 120.0
JOIN_TIMEOUT_S = 120
say = functools.partial(print, flush=True)
SETTING_UP = "setting up groups"
OVERALL = "all nodes together"
FAILED = "the all-reduce over the nodes failed: the lines above name where."


def nccl_command(config: Mapping[str, Any], *, address: str, port: int, deadline_s: float = DEADLINE_S) -> list[str]:
    """The command that each node runs (srun, one task a node): torchrun of this module over all devices of `config`.

    Args:
        address, port: where the ranks meet: the first node's address that the others reach, and a free port there.
        deadline_s: a check that takes longer hangs: it names where and ends with 1.

    Exit code 0: sums right, and `parallel.min_bus_bandwidth_gbs` reached where it is set.
    """
    layout = config["parallel"]
    floor = layout.get("min_bus_bandwidth_gbs")
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={layout['nodes']}"]
    command += [f"--nproc_per_node={layout['gpus_per_node']}", "--rdzv_backend=c10d", "--rdzv_id=nccl_check"]
    command += [f"--rdzv_endpoint={address}:{port}", f"--rdzv_conf=join_timeout={JOIN_TIMEOUT_S}"]
    command += ["-m", "retool_mcore.cluster.nccl_check", f"--device={layout['device']}", f"--deadline={deadline_s:.0f}"]
    return command if floor is None else [*command, f"--floor-gbs={floor}"]


def passes(
    config: Mapping[str, Any], srun: Callable[[Sequence[str], Sequence[str]], list[str]], *, address: str, port: int
) -> bool:
    """Runs the check on all nodes of `config`, its lines on our output; whether the sums and the bandwidth are good.

    Args:
        srun: makes the command line of a job step from its options and its command.
        address, port: as for `nccl_command`.
    """
    nodes = config["parallel"]["nodes"]
    step = srun([f"--nodes={nodes}", f"--ntasks={nodes}"], nccl_command(config, address=address, port=port))
    return subprocess.run(step, check=False, stdin=subprocess.DEVNULL).returncode == 0


def bus_bandwidth_gbs(nbytes: int, ranks: int, seconds: float) -> float:
    """GB/s (1e9) over the slowest link of one all-reduce: 2 (n - 1) / n * bytes / time (nccl-tests, PERFORMANCE.md)."""
    return 2 * (ranks - 1) / ranks * nbytes / seconds / 1e9


def phases(nodes: Sequence[str], per_node: int) -> list[tuple[str, list[int]]]:
    """(words, ranks) of every all-reduce, in an order in which no rank waits for two at once.

    Neighbours exchange through the first rank of each node; even pairs before odd ones, so that they overlap.
    """
    found = []
    if per_node > 1:
        found = [(f"inside {node}", list(range(i * per_node, (i + 1) * per_node))) for i, node in enumerate(nodes)]
    pairs = [(i, i + 1) for i in range(len(nodes) - 1)]
    for i, j in pairs[::2] + pairs[1::2]:
        found.append((f"between {nodes[i]} and {nodes[j]}", [i * per_node, j * per_node]))
    if len(nodes) > 1 or per_node > 1:
        found.append((OVERALL, list(range(len(nodes) * per_node))))
    return found


def verdict(measured: Mapping[str, float], floor_gbs: float | None) -> str:
    """What is wrong with the bandwidths (GB/s by phase), "" when nothing is. The floor is for all nodes together."""
    overall = measured.get(OVERALL, math.inf)
    if floor_gbs is None or overall >= floor_gbs:
        return ""
    parts = {words: speed for words, speed in measured.items() if words != OVERALL}
    # Inside a node NVLink is ten times faster than the network: what is slow for its kind counts.
    kinds = [{w: s for w, s in parts.items() if w.startswith(kind)} for kind in ("between", "inside")]
    slowest = "; ".join(f"slowest {min(kind, key=kind.get)}, {min(kind.values()):.2f} GB/s" for kind in kinds if kind)
    return (
        f"all-reduce over all nodes runs at {overall:.2f} GB/s, below parallel.min_bus_bandwidth_gbs={floor_gbs:g} "
        f"({slowest}): have the link looked at, exclude a node, or give a lower one with "
        "parallel.min_bus_bandwidth_gbs=GBS (null: told only)."
    )


def hang(stuck: Mapping[int, str], plan: Sequence[str], nodes: Sequence[str], per_node: int) -> str:
    """Where the ranks that did not come through are; `stuck` is rank -> its phase, `plan` all phases in their order.

    The earliest phase is told first: ranks in later ones wait for those in it.
    """
    parts = []
    for words in sorted(set(stuck.values()), key=plan.index):
        ranks = [rank for rank, phase in stuck.items() if phase == words]
        where = ", ".join(dict.fromkeys(nodes[rank // per_node] for rank in ranks))
        parts.append(f"{words} (ranks {', '.join(map(str, ranks))} on {where})")
    return "stuck: " + "; then waiting: ".join(parts)


def measure(group: "dist.ProcessGroup", ranks: int, device: "torch.device") -> float:
    """Bus bandwidth in GB/s of an all-reduce of one message over `group`; ValueError when the sum is wrong."""
    import torch
    import torch.distributed as dist

    synchronise = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    elements = MESSAGE_BYTES[device.type] // 4
    rank = dist.get_rank(group)
    message = torch.full((elements,), rank + 1, dtype=torch.float32, device=device)
    dist.all_reduce(message, group=group)
    wrong = int((message != ranks * (ranks + 1) / 2).sum())
    if wrong:
        raise ValueError(f"{wrong} of {elements} sums are wrong")
    message.zero_()  # sums of sums would overflow
    for repeat in range(WARM_UP + REPEATS):
        if repeat == WARM_UP:
            synchronise()
            start = time.perf_counter()
        dist.all_reduce(message, group=group)
    synchronise()
    return bus_bandwidth_gbs(elements * 4, ranks, (time.perf_counter() - start) / REPEATS)


def watch(deadline_s: float, look: Callable[[], str], out: Callable[[str], None]) -> threading.Timer:
    """Ends this process with 1 after `deadline_s`, after writing what `look` says: a stuck collective cannot return."""

    def end() -> None:
        with suppress(Exception):  # whatever it is, the process has to end
            out(f"nccl_check: no end after {deadline_s:.0f} s, {look()}")
        os._exit(1)

    timer = threading.Timer(deadline_s, end)
    timer.daemon = True
    timer.start()
    return timer


def run(device_type: str, deadline_s: float, floor_gbs: float | None) -> int:
    """One rank's part. Rank 0 prints the bandwidths; 1 when they are below the floor."""
    import torch
    import torch.distributed as dist

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    per_node, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    device = torch.device(device_type, local_rank) if device_type == "cuda" else torch.device("cpu")
    if device_type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=deadline_s)
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Until the ranks have met there is nobody to ask; the others end later than rank 0, which tells.
    start = watch(
        deadline_s, lambda: f"rank {rank} on {name} did not meet the others at {address[0]}:{address[1]}", say
    )
    dist.init_process_group(BACKEND[device_type], timeout=timeout * 2)
    # Connections of their own: that of the process group is taken while a collective is being set up.
    store, watching = (
        dist.PrefixStore("nccl_check", dist.TCPStore(*address, is_master=False, timeout=timeout * 2)) for _ in range(2)
    )
    store.set(f"name/{rank}", name)
    nodes = [store.get(f"name/{node * per_node}").decode() for node in range(world // per_node)]
    start.cancel()

    plan = phases(nodes, per_node)

    def look() -> str:
        keys = [f"phase/{other}" for other in range(world)]
        at = {i: watching.get(key).decode() if watching.check([key]) else SETTING_UP for i, key in enumerate(keys)}
        stuck = {other: words for other, words in at.items() if words != "done"}
        return hang(stuck, [SETTING_UP, *(words for words, _ in plan)], nodes, per_node)

    timer = watch(deadline_s + (0 if rank == 0 else 10), look, say if rank == 0 else lambda text: None)
    store.set(f"phase/{rank}", SETTING_UP)
    groups = [dist.new_group(ranks) for _, ranks in plan]  # every rank takes part in making every group
    for (words, ranks), group in zip(plan, groups, strict=True):
        if rank in ranks:
            store.set(f"phase/{rank}", words)
            try:
                speed = measure(group, len(ranks), device)
            except ValueError as error:
                say(f"nccl_check: {words}: {error} on rank {rank} ({name}): exclude the node, or have it looked at")
                return 1
            if rank == ranks[0]:
                store.set(f"speed/{words}", repr(speed))
    store.set(f"phase/{rank}", "done")
    message = ""
    if rank == 0:
        measured = {words: float(store.get(f"speed/{words}")) for words, _ in plan}
        for words, speed in measured.items():
            say(f"nccl_check: {words}: {speed:.2f} GB/s")
        if message := verdict(measured, floor_gbs):
            say(f"nccl_check: {message}")
        store.set("end", "end")
    store.get("end")  # nobody leaves while rank 0 still measures or reads
    timer.cancel()
    dist.destroy_process_group()
    return 1 if message else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m retool_mcore.cluster.nccl_check", description=__doc__)
    parser.add_argument("--device", choices=sorted(BACKEND), required=True)
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, help="seconds")
    parser.add_argument("--floor-gbs", type=float, help="least bus bandwidth over all nodes, GB/s")
    options = parser.parse_args(arguments)
    return run(options.device, options.deadline, options.floor_gbs)


if __name__ == "__main__":
    sys.exit(main())
