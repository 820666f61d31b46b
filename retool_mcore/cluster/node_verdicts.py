"""Judges the reports of all nodes side by side: what must be equal, what must be enough, what to do if it is not."""

import resource
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from rich.markup import escape
from rich.table import Table

from retool_mcore.cluster.node_report import model_name
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine, memory
from retool_mcore.preflight.model import find_folder

MAX_CLOCK_SKEW_S = 5.0
# Ray's session, compiled kernels, spilled objects
MIN_SCRATCH_BYTES = {"cpu": 1 * machine.GIB, "cuda": 10 * machine.GIB}
MIN_LOCKED_BYTES = 1 * machine.GIB  # InfiniBand pins its buffers; the usual default is 64 KiB to 8 MiB
MIN_DRIVER, MIN_CUDA = 580, 13000  # of torch's build (launch/constraints-gpu.txt); launch/setup.sh asks for the same
COMPATIBLE = (
    "have the driver updated, or on data-center GPUs install NVIDIA's cuda-compat-13-0 (apt-get or dnf) and put its "
    "folder, /usr/local/cuda-13.0/compat, into LD_LIBRARY_PATH in the site's env"
)
MAX_GPU_USED = 0.1  # of its memory, before we start: a driver's share is below 1 %
_ENVIRONMENT = "use one environment for all nodes: a shared folder or the same container image"
_DRIVER = "have the node's NVIDIA driver looked at, or exclude the node"
# What to do where a check fails, by the check.
EQUAL = {  # what must be the same on all nodes; `package` stands for every package
    "python": _ENVIRONMENT,
    "package": _ENVIRONMENT,
    "code": "run the same checkout of retool_mcore on every node",
    "model": "copy the model's folder again, or give one that all nodes share",
    "driver": "have the node's NVIDIA driver updated, or exclude the node",
    "GPU model": "ask for nodes of one kind (a constraint or a partition)",
    "infiniband": "have the node's network adapter looked at, or exclude the node",
}
FAILED = {  # a look that raised an error
    "run_dir": "choose a runs_dir that every node can write to",
    "sandbox": "mend sandbox.* or exclude the node",
    "scratch": "make the folder on every node, or give the site another scratch",
    "gpus": _DRIVER,
    "peers": _DRIVER,
    "other": "exclude the node, or have it looked at",
}
FOUND = {  # what a look found
    "run_dir shared": "choose a runs_dir on a file system that all nodes share",
    "clock": "have time synchronisation (chrony, ntpd) started on the node",
    "ports": "end what listens there (`ss -ltnp`), such as an earlier job's Ray",
    "disk of run_dir": "free some space or choose another runs_dir",
    "disk of scratch": "free space, or set TMPDIR to a larger disk",
    "shared memory": "give the node or its container a larger /dev/shm",
    "memory": "stop other programs there or ask for more memory",
    "open files": "raise the hard limit (ulimit -Hn, or nofile in /etc/security/limits.conf)",
    "locked memory": "set LimitMEMLOCK=infinity for slurmd and memlock unlimited in /etc/security/limits.conf",
    "GPUs": "ask Slurm for that many (--gpus-per-node), lower parallel.gpus_per_node, or exclude the node",
    "GPU memory in use": "end the program that holds it (`nvidia-smi` names it), or exclude the node",
    "peer access": "NCCL goes through host memory there, which is slower: have the node's topology looked at",
    "CPU binding": "install libnuma-dev (Debian) or numactl-devel, or ranks may run on CPUs far from their GPU",
}
INTERFACE = (
    "name in RETOOL_INTERFACE (the site's env) an interface of every node by which the others reach it, several by "
    "commas where nodes differ, or leave it out"
)

TOLD = ("peer access", "CPU binding")  # never refused


class Verdict(NamedTuple):
    """One check on one node. `detail`: what was found; `advice`: what to do, shown when it is not ok."""

    node: str
    check: str
    ok: bool
    detail: str
    advice: str = ""


Row = tuple[str, bool, str, str]  # check, ok, detail, advice: a verdict but for its node


def verdicts(reports: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[Verdict]:
    """All checks of all nodes, by node in the order of `reports` (the first node's is first).

    A report is what node_report.report found, with `clock_started` and `clock_ended` (the node's clock) and `launched`
    and `received` (the first node's clock), in seconds. A node that gave none has {"node": name, "no_answer": reason}.
    """
    usual = _usual([report for report in reports if "no_answer" not in report])
    shared = Counter(report["interface"][1] for report in reports if report.get("interface"))
    judged = []
    for report in reports:
        node = report["node"]
        if "no_answer" in report:
            advice = f"look at it with `scontrol show node {node}`, or exclude it"
            judged.append(Verdict(node, "answer", False, report["no_answer"], advice))
            continue
        rows = [
            ("answer", True, "answered", ""),
            *fitness(report, config),
            *_equal(report, usual),
            *_joined(report, shared),
        ]
        judged += [Verdict(node, *row) for row in rows]
    return judged


def fitness(report: Mapping[str, Any], config: Mapping[str, Any]) -> list[Row]:
    """Judge one node alone: looks that failed, room, limits, sandbox and devices."""
    advice = FAILED | {"interface": INTERFACE}
    failed = [(name, False, reason, advice.get(name, FAILED["other"])) for name, reason in report["errors"].items()]
    devices = _devices(report, config) if config["parallel"]["device"] == "cuda" else ()
    return [*failed, *_interface(report, config), *_enough(report, config, _needs(config)), *devices]


def _interface(report: Mapping, config: Mapping) -> Iterator[Row]:
    """The interface that RETOOL_INTERFACE names."""
    if named := report.get("interface"):
        loopback = named[1].startswith("127.") and config["parallel"].get("nodes", 1) > 1
        detail = f"{named[0]}, {named[1]}" + (": no other node reaches it" if loopback else "")
        yield "interface", not loopback, detail, INTERFACE


def _traits(report: Mapping) -> dict[str, tuple[str, str]]:
    """Return the traits that must be equal: check -> (value, advice)."""
    traits = {name: (str(report[name]), advice) for name, advice in EQUAL.items() if name in report}
    for name, version in report.get("packages", {}).items():
        traits[f"package {name}"] = (version, EQUAL["package"])
    for check, key in (("driver", "driver"), ("GPU model", "name")):
        if values := {gpu[key] for gpu in report.get("gpus", ())}:
            traits[check] = (", ".join(sorted(values)), EQUAL[check])
    return traits


def _usual(reports: Sequence[Mapping]) -> dict[str, tuple[str, str]]:
    """check -> (value that most nodes have, first node that has it); of equally many, the first node's."""
    nodes: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        for check, (value, _) in _traits(report).items():
            nodes.setdefault(check, {}).setdefault(value, []).append(report["node"])
    most = {check: max(values, key=lambda value: len(values[value])) for check, values in nodes.items()}
    if ports := nodes.get("infiniband"):  # a port goes down; none appears: of two nodes the one with fewer is at fault
        most["infiniband"] = max(ports, key=int)
    return {check: (value, nodes[check][value][0]) for check, value in most.items()}


def _equal(report: Mapping, usual: Mapping[str, tuple[str, str]]) -> Iterator[Row]:
    for check, (value, advice) in _traits(report).items():
        expected, elsewhere = usual[check]
        ok = value == expected
        yield check, ok, value if ok else f"{value}, but {expected} on {elsewhere}", advice


def _joined(report: Mapping, addresses: Mapping[str, int]) -> Iterator[Row]:
    """Judge what matters where several nodes work together. addresses: how many nodes have it on the interface
    named."""
    if report.get("interface") and addresses[report["interface"][1]] > 1:  # as a bridge of containers
        yield "interface", False, f"{', '.join(report['interface'])}, the address of another node as well", INTERFACE
    if "token_seen" in report:
        detail = "shared" if report["token_seen"] else "a file that the first node wrote is not there"
        yield "run_dir shared", report["token_seen"], detail, FOUND["run_dir shared"]
    if "received" in report:
        # A clock is surely wrong by what it says to have started before the launch, or ended after the arrival.
        behind = report["launched"] - report["clock_started"]
        ahead = report["clock_ended"] - report["received"]
        skew, word = max((behind, "behind"), (ahead, "ahead of"))
        ok = skew < MAX_CLOCK_SKEW_S
        detail = "agrees" if ok else f"{skew:.0f} s {word} the first node"
        yield "clock", ok, detail, FOUND["clock"]
    if "ports_busy" in report:
        busy = ", ".join(map(str, report["ports_busy"]))
        yield "ports", not busy, f"{busy} in use" if busy else "free", FOUND["ports"]


def _needs(config: Mapping) -> memory.Needs:
    """Return the memory needs of one node, by the policy that the first node sees; without a policy, the needs of any
    run."""
    config, folder = OmegaConf.create(config), None
    with suppress(UserError):
        folder = find_folder(model_name(config), key="model", advice="") if "train" in config else None
    return memory.node_needs(config, folder)


def _enough(report: Mapping, config: Mapping, needs: memory.Needs) -> Iterator[Row]:
    layout = config["parallel"]
    device, scratch = layout["device"], report.get("scratch", "scratch")
    shm = layout["ray"]["object_store_bytes"] or machine.MIN_SHM_BYTES
    for check, key, needed in (
        ("disk of run_dir", "run_dir_free", machine.MIN_DISK_BYTES),
        ("disk of scratch", "scratch_free", MIN_SCRATCH_BYTES[device]),
        ("shared memory", "shm_free", shm),
        ("memory", "memory_available", needs.least),
    ):
        if key in report:
            free = report[key]
            ok = free >= needed
            detail = f"{free / machine.GIB:.1f} GiB free" + ("" if ok else f", {needed / machine.GIB:.1f} needed")
            yield check.replace("scratch", scratch), ok, detail, FOUND[check]
    for check, name, needed in (
        ("open files", "RLIMIT_NOFILE", machine.MIN_OPEN_FILES),
        ("locked memory", "RLIMIT_MEMLOCK", MIN_LOCKED_BYTES if report.get("infiniband") else 0),
    ):
        if needed and name in report.get("limits", {}):
            limit = report["limits"][name]
            detail = "unlimited" if limit == resource.RLIM_INFINITY else str(limit)
            ok = limit == resource.RLIM_INFINITY or limit >= needed
            yield check, ok, detail if ok else f"{detail}, {needed} needed", FOUND[check]
    if "sandbox" in report:
        yield "sandbox", True, f"{report['sandbox']['found']}, {report['sandbox']['seconds']:.1f} s", ""


def _devices(report: Mapping, config: Mapping) -> Iterator[Row]:
    if "gpus" in report:
        gpus, expected = report["gpus"], config["parallel"]["gpus_per_node"]
        ok = len(gpus) >= expected
        yield "GPUs", ok, str(len(gpus)) if ok else f"{len(gpus)}, {expected} needed", FOUND["GPUs"]
        yield from _driver(gpus, report.get("cuda", 0))
        used = [
            f"GPU {index}: {gpu['used_mb']} of {gpu['memory_mb']} MiB"
            for index, gpu in enumerate(gpus)
            if gpu["used_mb"] is not None and gpu["memory_mb"] and gpu["used_mb"] > MAX_GPU_USED * gpu["memory_mb"]
        ]
        yield "GPU memory in use", not used, "; ".join(used) or "none", FOUND["GPU memory in use"]
    if "gpu_faults" in report:
        faults = "; ".join(report["gpu_faults"])
        yield "GPU faults", not faults, faults or "none", "have the GPU reset or replaced, or exclude the node"
    if "peers" in report:
        pairs = ", ".join(report["peers"])
        yield "peer access", True, f"missing: {pairs}" if pairs else "all pairs", FOUND["peer access"] if pairs else ""
    if "numa" in report:
        # verl binds each rank to the CPUs next to its GPU, and leaves it unbound with a warning where it cannot.
        count, library = report["numa"]["nodes"], report["numa"]["library"]
        detail = f"{count} NUMA nodes, {'libnuma.so' if library else 'no libnuma.so'}"
        yield "CPU binding", True, detail, "" if library or count < 2 else FOUND["CPU binding"]


def _driver(gpus: Sequence[Mapping], cuda: int) -> Iterator[Row]:
    """Whether the driver serves CUDA 13, or an older one does with NVIDIA's forward-compatibility package."""
    numbers = {gpu["driver"]: int(gpu["driver"].split(".")[0]) for gpu in gpus if gpu["driver"].split(".")[0].isdigit()}
    if not numbers:
        return
    oldest = min(numbers, key=numbers.get)
    ok = numbers[oldest] >= MIN_DRIVER or cuda >= MIN_CUDA
    serves = f"{oldest}, whose libcuda serves CUDA {cuda // 1000}.{cuda % 1000 // 10}" if cuda else oldest
    yield "driver for CUDA 13", ok, serves if ok else f"{serves}; {MIN_DRIVER} or CUDA 13 needed", COMPATIBLE


def notes(found: Sequence[Verdict]) -> list[str]:
    """Return what costs speed and is no reason to refuse a job, one line a check."""
    lines = {}
    for verdict in found:
        if verdict.check in TOLD and verdict.advice:
            lines.setdefault((verdict.check, verdict.detail, verdict.advice), []).append(verdict.node)
    return [f"{check} on {', '.join(nodes)}: {detail}: {advice}." for (check, detail, advice), nodes in lines.items()]


def table(found: Sequence[Verdict], nodes: Sequence[str]) -> Table:
    """Rows: the checks that failed somewhere; columns: all of up to four nodes, else those where one failed."""
    bad = {verdict.check: verdict.advice for verdict in found if not verdict.ok}
    failing = {verdict.node for verdict in found if not verdict.ok}
    shown = [node for node in nodes if len(nodes) <= 4 or node in failing]
    cells = {(verdict.check, verdict.node): verdict for verdict in found}
    columns = Table("check", *shown, "what to do", title=f"checks of the nodes that failed: {len(bad)}")
    for check, advice in bad.items():
        row = [cells.get((check, node), Verdict(node, check, True, "-")) for node in shown]
        details = [escape(v.detail) if v.ok else f"[bold red]{escape(v.detail)}[/bold red]" for v in row]
        columns.add_row(check, *details, escape(advice))
    return columns


def refusal(found: Sequence[Verdict]) -> str:
    """Return one sentence about the first verdict that is not ok; "" when all are."""
    bad = [verdict for verdict in found if not verdict.ok]
    if not bad:
        return ""
    first = bad[0]
    more = f" ({len(bad) - 1} more in the table above)" if len(bad) > 1 else ""
    return f"node {first.node}, {first.check}: {first.detail.removesuffix('.')}: {first.advice}{more}."
