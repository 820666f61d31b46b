"""`retool doctor`: what this machine and this environment have, what is wrong with them, and what to do about it."""

import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from retool_mcore.backends.check import has_apex
from retool_mcore.backends.env import stage_env
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine

DISTRIBUTION = "retool-mcore"
SETUP = "run launch/setup.sh"
ADAPTERS_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Finding:
    """One row of the table; `advice` is shown when the finding is not ok."""

    name: str
    found: str
    ok: bool
    advice: str = ""


def run(config: DictConfig, console: Console | None = None) -> int:
    """Prints the table for the machine that `config` (stage doctor) describes; 0 when all is fine, else 1.

    Inside a Slurm allocation of several nodes it looks at the others too: UserError when one of them is unfit.
    """
    console = console or Console()
    with console.status("looking at this machine"):
        findings = examine(config)
    console.print(table(findings))
    failed = sum(not finding.ok for finding in findings)
    console.print(f"{failed} of {len(findings)} checks failed." if failed else f"All {len(findings)} checks are fine.")
    if "SLURM_JOB_ID" in os.environ and int(os.environ.get("SLURM_NNODES", "1")) > 1:
        from retool_mcore.cluster.node_check import check_allocation  # its caller's side imports no doctor

        check_allocation(config, console)
    return 1 if failed else 0


def table(findings: Iterable[Finding]) -> Table:
    columns = Table("check", "found", "verdict", "what to do", title="retool doctor", expand=False)
    for finding in findings:
        verdict = "[green]ok[/green]" if finding.ok else "[bold red]wrong[/bold red]"
        # Escaped: a message such as "[Errno 2] ..." is no markup.
        columns.add_row(finding.name, escape(finding.found), verdict, "" if finding.ok else escape(finding.advice))
    return columns


def examine(config: DictConfig) -> list[Finding]:
    layout = config.parallel
    cpu = layout.device == "cpu"
    findings = [
        python_version("cpu" if cpu else "gpu"),
        *package("cpu" if cpu else "gpu"),
    ]
    findings += cpu_libraries() if cpu else gpu_libraries()
    if not cpu:
        findings.append(attempt("CUDA devices", lambda: cuda(layout.device, layout.gpus_per_node)))
    findings += adapters(stage_env(config))
    findings.append(sandbox(config.sandbox))
    findings.append(attempt("memory", memory if cpu else total_memory))
    findings.append(attempt("disk", lambda: disk(config.run_dir)))
    findings += [shared_memory(layout.ray.object_store_bytes or machine.MIN_SHM_BYTES), open_files()]
    return findings


def attempt(name: str, look: Callable[[], str]) -> Finding:
    """`look` returns what it found, or raises the UserError that preflight would end a run with."""
    try:
        return Finding(name, look(), True)
    except UserError as error:
        return Finding(name, "not enough", False, str(error))


def python_version(extra: str) -> Finding:
    expected = {"cpu": (3, 11), "gpu": (3, 12)}[extra]
    found = sys.version_info[:2]
    wanted = ".".join(map(str, expected))
    return Finding(
        "Python", ".".join(map(str, found)), found == expected, f"the {extra} environment needs {wanted}: {SETUP}"
    )


def package(extra: str) -> list[Finding]:
    """This package's own requirements. Run from a source tree that was never installed, nobody knows them."""
    try:
        return pins(metadata.requires(DISTRIBUTION) or [], extra)
    except metadata.PackageNotFoundError:
        return [Finding(DISTRIBUTION, "not installed", False, SETUP)]


def pins(requirements: Iterable[str], extra: str) -> list[Finding]:
    """One finding a requirement that applies to `extra`: the version installed against the version asked for."""
    findings = []
    for requirement, found in machine.installed(requirements, extra):
        ok = bool(found) and requirement.specifier.contains(found, prereleases=True)
        advice = f"expected {requirement.name}{requirement.specifier}: {SETUP}"
        findings.append(Finding(requirement.name, found or "not installed", ok, advice))
    return findings


def cpu_libraries() -> list[Finding]:
    harmful = [name for name in ("torchvision", "torchaudio", "torchcodec") if importlib.util.find_spec(name)]
    compilers = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    return [
        Finding(
            "torchvision and its kin",
            ", ".join(harmful) or "absent, as they should be",
            not harmful,
            f"builds for CUDA break every transformers import: pip uninstall {' '.join(harmful)}",
        ),
        Finding(
            "C and C++ compiler",
            f"no {', '.join(compilers)}" if compilers else "gcc, g++",
            not compilers,
            f"vLLM on CPU compiles kernels: apt-get install {' '.join(compilers)}",
        ),
    ]


def gpu_libraries() -> list[Finding]:
    """What launch/setup.sh installs or compiles beside the pinned requirements, found without importing it."""
    engine = importlib.util.find_spec("transformer_engine") is not None
    bridge = next(iter(metadata.Distribution.discover(name="megatron-bridge")), None)
    found = bridge.version if bridge else "absent"
    return [
        Finding(
            "Transformer Engine", "present" if engine else "absent", engine, f"Megatron's GPU layers need it: {SETUP}"
        ),
        Finding("Megatron Bridge", found, bridge is not None, f"weights are converted by it: {SETUP}"),
        # Optional: without it gradient-accumulation fusion stays off, which costs some speed.
        Finding("NVIDIA Apex", "present" if has_apex() else "absent (optional)", True),
    ]


def cuda(device: str, gpus_per_node: int) -> str:
    gpus = machine.cuda_devices()
    machine.check_devices(device, gpus_per_node=gpus_per_node, gpus_found=len(gpus))
    return "; ".join(gpu.partition(" (UUID")[0] for gpu in gpus)


def adapters(env: Mapping[str, str]) -> list[Finding]:
    """The platform adapters as a stage's process sees them: in a fresh Python with the stage's environment."""
    script = "import json; from retool_mcore.backends.check import adapters; print(json.dumps(adapters()))"
    advice = f"the environment is incomplete or retool-mcore is not installed in it: {SETUP}"
    try:
        process = subprocess.run(
            [sys.executable, "-c", script], env=dict(env), capture_output=True, text=True, timeout=ADAPTERS_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return [Finding("adapters", f"no answer within {ADAPTERS_TIMEOUT_S:.0f} s", False, advice)]
    if process.returncode != 0:
        reason = (process.stderr.strip().splitlines() or ["no message"])[-1]
        return [Finding("adapters", reason, False, advice)]
    # The libraries print to stdout as they are imported; the answer is the last line.
    found = json.loads(process.stdout.strip().splitlines()[-1])
    return [
        Finding(f"adapter {name}", purpose if active else "did not take effect", active, advice)
        for name, active, purpose in found
    ]


def sandbox(config: Mapping) -> Finding:
    start = time.perf_counter()
    try:
        found = machine.check_sandbox(config)
    except UserError as error:
        return Finding("sandbox", config["kind"], False, str(error))
    return Finding("sandbox", f"{config['kind']}, {found}, answered in {time.perf_counter() - start:.2f} s", True)


def memory() -> str:
    available = machine.available_memory_bytes()
    machine.check_memory(available)
    return f"{available / machine.GIB:.1f} GiB available"


def total_memory() -> str:
    return f"{machine.available_memory_bytes() / machine.GIB:.1f} GiB available"


def disk(run_dir: str) -> str:
    machine.check_disk(run_dir, needed_bytes=machine.MIN_DISK_BYTES)
    return f"{machine.free_bytes(run_dir) / machine.GIB:.1f} GiB free in {machine.existing_parent(run_dir)}"


def shared_memory(needed_bytes: int, folder: str = "/dev/shm") -> Finding:
    """Ray's object store and the engines' queues live there; containers give it 64 MiB unless asked."""
    free = shutil.disk_usage(folder).free if os.path.isdir(folder) else 0
    advice = f"{needed_bytes / machine.GIB:.1f} GiB are needed: start the container with --shm-size=2g or --ipc=host"
    return Finding("shared memory", f"{free / machine.GIB:.1f} GiB free in {folder}", free >= needed_bytes, advice)


def open_files(minimum: int = machine.MIN_OPEN_FILES) -> Finding:
    # Ray raises the soft limit to the hard one by itself, so the hard one counts.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    unlimited = hard == resource.RLIM_INFINITY
    advice = f"at least {minimum} are needed: raise the hard limit (ulimit -Hn, or nofile in /etc/security/limits.conf)"
    return Finding("open files", "unlimited" if unlimited else str(hard), unlimited or hard >= minimum, advice)
