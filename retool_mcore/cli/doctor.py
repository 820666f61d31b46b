"""`retool doctor`: what this machine and this environment have, what is wrong with them, and what to do about it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from retool_mcore.backends.check import has_apex
from retool_mcore.backends.env import stage_env
from retool_mcore.cluster.node_check import check_allocation
from retool_mcore.cluster.node_report import report
from retool_mcore.cluster.node_verdicts import fitness
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
    extra = "cpu" if config.parallel.device == "cpu" else "gpu"
    libraries = cpu_libraries() if extra == "cpu" else gpu_libraries()
    rows = fitness(report(config), config)  # what is checked on every node of a job
    machine_rows = [Finding(check, detail, ok, advice) for check, ok, detail, advice in rows]
    return [python_version(extra), *package(extra), *libraries, *adapters(stage_env(config)), *machine_rows]


def python_version(extra: str) -> Finding:
    wanted, version = {"cpu": "3.11", "gpu": "3.12"}[extra], "{}.{}".format(*sys.version_info)
    return Finding("Python", version, version == wanted, f"the {extra} environment needs {wanted}: {SETUP}")


def package(extra: str) -> list[Finding]:
    """This package's own requirements. Run from a source tree that was never installed, nobody knows them."""
    try:
        return pins(metadata.requires(DISTRIBUTION) or [], extra)
    except metadata.PackageNotFoundError:
        return [Finding(DISTRIBUTION, "not installed", False, SETUP)]


def pins(requirements: Iterable[str], extra: str) -> list[Finding]:
    """One finding a requirement that applies to `extra`: the version installed against the version asked for."""
    findings = []
    for requirement, version in machine.installed(requirements, extra):
        ok = bool(version) and requirement.specifier.contains(version, prereleases=True)
        advice = f"expected {requirement.name}{requirement.specifier}: {SETUP}"
        findings.append(Finding(requirement.name, version or "not installed", ok, advice))
    return findings


def cpu_libraries() -> list[Finding]:
    harmful = [name for name in ("torchvision", "torchaudio", "torchcodec") if importlib.util.find_spec(name)]
    compilers = [name for name in ("gcc", "g++") if shutil.which(name) is None]
    detail = ", ".join(harmful) or "absent, as they should be"
    mend = f"builds for CUDA break every transformers import: pip uninstall {' '.join(harmful)}"
    there = f"no {', '.join(compilers)}" if compilers else "gcc, g++"
    get = f"vLLM on CPU compiles kernels: apt-get install {' '.join(compilers)}"
    libraries = Finding("torchvision and its kin", detail, not harmful, mend)
    return [libraries, Finding("C and C++ compiler", there, not compilers, get)]


def gpu_libraries() -> list[Finding]:
    """Find what launch/setup.sh installs or compiles in addition to the pinned requirements, without importing it."""
    engine, needed = importlib.util.find_spec("transformer_engine"), f"Megatron's GPU layers need it: {SETUP}"
    bridge = next(iter(metadata.Distribution.discover(name="megatron-bridge")), None)
    version = bridge.version if bridge else "absent"
    return [
        Finding("Transformer Engine", "present" if engine else "absent", engine is not None, needed),
        Finding("Megatron Bridge", version, bridge is not None, f"weights are converted by it: {SETUP}"),
        # Optional: without it gradient-accumulation fusion stays off, which costs some speed.
        Finding("NVIDIA Apex", "present" if has_apex() else "absent (optional)", True),
    ]


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
    rows = json.loads(process.stdout.strip().splitlines()[-1])
    none = "did not take effect"
    return [Finding(f"adapter {name}", purpose if works else none, works, advice) for name, works, purpose in rows]
