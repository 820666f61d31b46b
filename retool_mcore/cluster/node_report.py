"""A report of what one node of the allocation has, as plain data. It only looks: node_verdicts.py decides what is
wrong, on the first node, which has the reports of all nodes."""

import ctypes
import hashlib
import os
import platform
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

import retool_mcore
from retool_mcore import resources, temporary
from retool_mcore.cluster import network
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine
from retool_mcore.preflight.model import find_folder

DISTRIBUTION = "retool-mcore"
TOKEN_WAIT_S = 10.0  # a network file system may show a new file to other nodes some seconds late
LOCKABLE = ("RLIMIT_MEMLOCK", "RLIMIT_NOFILE")


def report(config: DictConfig, *, token: str = "", ports: Sequence[int] = (), sandbox: bool = True) -> dict[str, Any]:
    """This node's report, JSON-able. Takes no GPU, imports no torch; seconds, most of them for the sandbox.

    A look that fails leaves its reason in `errors` under its own name and its value out.

    Args:
        token: word that the first node wrote into `token_file(run_dir, token)`; "" when there is none to look for.
        ports: TCP ports that must be free here.
        sandbox: also run a program in the sandbox.
    """
    run_dir = config.run_dir
    looks: dict[str, Callable[[], Any]] = {
        "python": platform.python_version,
        "packages": lambda: packages("cpu" if config.parallel.device == "cpu" else "gpu"),
        "code": code_hash,
        "run_dir": lambda: writable(Path(run_dir)) if token else machine.check_disk(run_dir, needed_bytes=0),
        "run_dir_free": lambda: machine.free_bytes(run_dir),
        "scratch": lambda: str(temporary.folder()),
        "scratch_free": lambda: machine.free_bytes(tempfile.gettempdir()),
        "model": lambda: model_files(model_name(config)),
        "shm_free": lambda: machine.free_bytes("/dev/shm"),
        "memory_available": resources.available_memory_bytes,
        "limits": lambda: {name: resource.getrlimit(getattr(resource, name))[1] for name in LOCKABLE},
        "ports_busy": lambda: network.busy_ports(ports),
    }
    if os.environ.get("RETOOL_INTERFACE"):
        looks["interface"] = network.named_interface
    if token:
        looks["token_seen"] = lambda: sees(token_file(run_dir, token), token)
    if config.parallel.device == "cuda":
        looks |= {
            "gpus": machine.gpus,
            "cuda": cuda_version,
            "gpu_faults": gpu_faults,
            "peers": unreachable_peers,
            "infiniband": infiniband_ports,
            "numa": numa,
        }
    if sandbox:
        looks["sandbox"] = lambda: timed(lambda: machine.check_sandbox(config.sandbox))
    facts: dict[str, Any] = {"node": network.host(), "hostname": socket.gethostname(), "errors": {}}
    for name, look in looks.items():
        try:
            facts[name] = look()
        except (OSError, UserError, subprocess.SubprocessError, metadata.PackageNotFoundError) as error:
            facts["errors"][name] = str(error) or type(error).__name__
    return facts


def packages(extra: str) -> dict[str, str]:
    """Installed version by name of every requirement of this package that applies to `extra`, "absent" without one."""
    versions = machine.installed(metadata.requires(DISTRIBUTION) or [], extra)
    return {requirement.name: version or "absent" for requirement, version in versions}


def code_hash(folder: Path = Path(retool_mcore.__file__).parent) -> str:
    """Return a digest of every Python file of the package: a commit misses uncommitted changes, and an installed
    package has none."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def token_file(run_dir: str | Path, token: str) -> Path:
    return Path(run_dir) / "slurm" / f"node_check-{token}"


def sees(path: Path, token: str) -> bool:
    deadline = time.monotonic() + TOKEN_WAIT_S
    while True:
        with suppress(OSError):
            if path.read_text() == token:
                return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def writable(folder: Path) -> str:
    """The folder, made when it is not there, after a file was written and removed in it; OSError when that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".node_check-") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    return str(folder)


def model_name(config: DictConfig) -> str:
    """The policy's folder or hub name that the stage of `config` reads."""
    return str(config.get("init_from") or config.get("policy_path") or config.model.path)


def model_files(name: str) -> str:
    """Hash over the names and sizes of a model's files, "absent" when there is none (reading 65 GB takes minutes)."""
    try:
        folder = find_folder(name, key="model", advice="")
    except UserError:
        return "absent"
    files = sorted(f"{path.name} {path.stat().st_size}" for path in folder.iterdir() if path.is_file())
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:12]


def timed(look: Callable[[], str]) -> dict[str, Any]:
    start = time.perf_counter()
    return {"found": look(), "seconds": round(time.perf_counter() - start, 2)}


def unreachable_peers() -> list[str]:
    """Pairs of this node's GPUs without direct access to each other's memory, as "GPU0-GPU1".

    The matrix of `nvidia-smi topo -p2p r` has X on the diagonal, OK, or a reason such as CNS or NS.
    """
    answer = machine.nvidia_smi("topo", "-p2p", "r")
    rows = [line.replace("\x1b[4m", "").replace("\x1b[0m", "").split() for line in answer.splitlines()]
    header = next((row for row in rows if len(row) > 0 and all(word.startswith("GPU") for word in row)), [])
    pairs = []
    for row in rows:
        if len(row) == len(header) + 1 and row[0] in header:
            # Each pair is in the matrix twice.
            pairs += [
                f"{row[0]}-{column}"
                for column, cell in zip(header, row[1:], strict=True)
                if cell not in ("X", "OK") and header.index(column) > header.index(row[0])
            ]
    return pairs


def cuda_version() -> int:
    """The newest CUDA that this node's libcuda serves, as 13000 of 13.0; 0 where none can be loaded.

    A forward-compatibility package brings a newer libcuda than the driver's. Takes no GPU.
    """
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value


def gpu_faults() -> list[str]:
    """Faults that the driver has recorded of this node's GPUs, as "GPU 3: 2 uncorrected ECC errors".

    Counted are errors since the GPU's last reset, and rows of memory whose replacement waits for a reset or has failed;
    GPUs without ECC answer "[N/A]" or "[Not Supported]".
    """
    questions = {
        "uncorrected ECC errors": ("--query-gpu", "ecc.errors.uncorrected.volatile.total"),
        "memory rows that wait for a reset": ("--query-remapped-rows", "remapped_rows.pending"),
        "memory rows that could not be replaced": ("--query-remapped-rows", "remapped_rows.failure"),
    }
    faults = []
    for words, (option, field) in questions.items():
        answers = machine.nvidia_smi(f"{option}={field}", "--format=csv,noheader,nounits").split("\n")
        for index, answer in enumerate(filter(None, map(str.strip, answers))):
            if answer == "Yes" or (answer.isdigit() and int(answer) > 0):
                faults.append(f"GPU {index}: {'' if answer == 'Yes' else f'{answer} '}{words}")
    return faults


def infiniband_ports(root: Path = Path("/sys/class/infiniband")) -> int:
    """Active InfiniBand or RoCE ports of this node."""
    return sum("ACTIVE" in path.read_text() for path in root.glob("*/ports/*/state"))


def numa(nodes: Path = Path("/sys/devices/system/node")) -> dict[str, Any]:
    """How many memory nodes (NUMA) have CPUs here, and whether verl's ranks can bind to the CPUs of their GPU's: its
    `set_numa_affinity` does so by libnuma.so, a name that only the development package has, and by NVML."""
    try:
        ctypes.CDLL("libnuma.so")
        library = True
    except OSError:
        library = False
    with_cpus = [path for path in nodes.glob("node[0-9]*/cpulist") if path.read_text().strip()]
    return {"nodes": len(with_cpus), "library": library}
