"""Does this machine have what the run asks for: devices, memory, disk, libraries, a sandbox that answers?"""

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from retool_mcore.errors import UserError
from retool_mcore.resources import GIB, tightest
from retool_mcore.sandbox.create import create_sandbox, describe, probe

NVIDIA_SMI_TIMEOUT_S = 60.0

# The tiny model's RL run (two trainer processes, one engine, Ray) took up to 12 GB, shared pages counted twice.
# Well below that the kernel kills a worker in the middle of a step.
MIN_CPU_MEMORY_BYTES = 6 * GIB

MIN_DISK_BYTES = 1 * GIB  # for logs, metrics and trajectories
LARGE_CHECKPOINT_BYTES = 4 * GIB  # below, the time to write one needs no word
TRIAL_BYTES, TRIAL_S = 256 * 2**20, 3.0
MIN_SHM_BYTES = 1 * GIB
MIN_OPEN_FILES = 4096  # Ray, vLLM and the trainer hold some hundreds of sockets and files each

# A local sandbox answers within a second, on a loaded machine within a few. A service that takes a connection and hangs
# would otherwise hold the run for minutes: each request waits for its own grace period and is tried again.
SANDBOX_TIMEOUT_S = 30.0


def nvidia_smi(*arguments: str) -> str:
    """The answer of the driver's own tool, since asking torch would take the GPU. OSError where it fails or is none."""
    command = ["nvidia-smi", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT_S, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise OSError(f"nvidia-smi: {lines[-1] if lines else f'exit code {done.returncode}'}")
    return done.stdout


def gpus() -> list[dict[str, Any]]:
    """Return one entry a GPU of this node: name, driver, memory and memory in use, in MiB. OSError without a driver."""
    asked = "--query-gpu=name,driver_version,memory.total,memory.used"
    cards = []
    for line in filter(str.strip, nvidia_smi(asked, "--format=csv,noheader,nounits").splitlines()):
        name, driver, total, used = (field.strip() for field in line.rsplit(",", 3))
        # Parts of a GPU (MIG) and GPUs of some integrated systems answer "[N/A]".
        total_mb, used_mb = (int(field) if field.isdigit() else None for field in (total, used))
        cards.append({"name": name, "driver": driver, "memory_mb": total_mb, "used_mb": used_mb})
    return cards


def gpus_if_any() -> list[dict[str, Any]]:
    """`gpus`; [] without a driver that works."""
    try:
        return gpus()
    except OSError:
        return []


def gpu_memory_bytes() -> list[int | None]:
    """Return the memory of each GPU of this node, None where it does not report it; [] without a working driver."""
    return [gpu["memory_mb"] and gpu["memory_mb"] * 2**20 for gpu in gpus_if_any()]


def gpu_names() -> list[str]:
    """Return the name of each GPU of this node, as NVIDIA H100 80GB HBM3; [] without a working driver."""
    return [gpu["name"] for gpu in gpus_if_any()]


def compute_capabilities() -> list[float]:
    """Return the compute capability of each GPU of this node, as 9.0 of an H100; [] without a working driver."""
    try:
        return [float(line) for line in nvidia_smi("--query-gpu=compute_cap", "--format=csv,noheader").splitlines()]
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return []


def installed(requirements: Iterable[str], extra: str) -> Iterator[tuple[Requirement, str]]:
    """Return those of `requirements` that apply to `extra` ("cpu", "gpu"), each with the version installed, "" without
    one."""
    for requirement in map(Requirement, requirements):
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        try:
            yield requirement, metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield requirement, ""


def check_devices(device: str, *, gpus_per_node: int, gpus_found: int) -> None:
    if device == "cuda" and gpus_found < gpus_per_node:
        raise UserError(
            f"parallel.gpus_per_node={gpus_per_node} but nvidia-smi lists {gpus_found} GPUs on this node: lower it, or "
            "choose parallel=cpu-tp2 on a machine without a GPU."
        )


def check_rollout_devices(pipeline: Mapping, layout: Mapping, *, devices: float | None, source: str) -> None:
    """Engines with devices of their own need them in addition to the trainer's.

    pipeline, layout: the sections `pipeline` and `parallel`; devices: all that Ray will have, None where only Ray
    knows; source: who says so.
    """
    rollout = pipeline["rollout_nodes"] * pipeline["rollout_gpus"]
    trainer = layout["nodes"] * layout["gpus_per_node"]
    if pipeline["hybrid"] or devices is None or rollout + trainer <= devices:
        return
    raise UserError(
        f"pipeline={pipeline['name']} needs {rollout} rollout devices (pipeline.rollout_nodes x pipeline.rollout_gpus) "
        f"in addition to the trainer's {trainer} (parallel.nodes x parallel.gpus_per_node), and {source} {devices:g}: "
        "lower parallel.gpus_per_node, or take pipeline=sync, which shares them."
    )


def check_memory(available_bytes: int) -> None:
    if available_bytes < MIN_CPU_MEMORY_BYTES:
        available, needed = available_bytes / GIB, MIN_CPU_MEMORY_BYTES / GIB
        raise UserError(
            f"Only {available:.1f} GiB of memory are available{limited()} and a run on CPU needs {needed:.0f} GiB: "
            "stop other programs, or take a larger machine or a job with more memory."
        )


def limited() -> str:
    """Which limit keeps memory from this process, for a message; "" where the machine itself has no more."""
    limit = tightest()
    return f" ({limit.file} allows {limit.limit / GIB:.1f} GiB)" if limit else ""


def tell_write_time(run_dir: str | Path, size: int) -> None:
    """Say how long a checkpoint of `size` bytes takes, by writing TRIAL_BYTES, or for TRIAL_S, next to the run's files.

    Never refused: ranks of several nodes write at once.
    """
    if size < LARGE_CHECKPOINT_BYTES:
        return
    parent, chunk, written = existing_parent(run_dir), os.urandom(2**24), 0
    with tempfile.TemporaryFile(dir=parent) as file:
        start = time.monotonic()
        while written < TRIAL_BYTES and time.monotonic() - start < TRIAL_S:
            written += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        speed = written / (time.monotonic() - start)
    duration = f"{size / speed / 60:.1f} min at the {speed / 1e9:.2g} GB/s of {parent}"
    print(f"A checkpoint of {size / 1e9:.0f} GB takes one writer {duration}")


def existing_parent(path: str | Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def free_bytes(folder: str | Path) -> int:
    return shutil.disk_usage(existing_parent(folder)).free


def check_disk(
    run_dir: str | Path, *, needed_bytes: int, advice: str = "free some space or choose another runs_dir"
) -> None:
    """`run_dir` need not exist yet: its nearest existing parent must be a writable folder with room enough."""
    parent = existing_parent(run_dir)
    if not parent.is_dir():
        raise UserError(f"run_dir {run_dir} lies below {parent}, which is a file: choose another runs_dir.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"run_dir {run_dir}: no permission to write in {parent}: choose another runs_dir.")
    free = free_bytes(parent)
    if free < needed_bytes:
        raise UserError(
            f"run_dir {run_dir} has {free / GIB:.1f} GiB free and the run needs about {needed_bytes / GIB:.1f} GiB: "
            f"{advice}."
        )


def check_sandbox(config: Mapping) -> str:
    """Starts the sandbox, runs a small program in it and closes it; returns in words what answered.

    Raises UserError when the answer is wrong or takes longer than SANDBOX_TIMEOUT_S.
    """

    async def start_and_probe() -> str:
        sandbox = create_sandbox(config)
        try:
            async with asyncio.timeout(SANDBOX_TIMEOUT_S):
                await probe(sandbox)
        except TimeoutError as error:
            raise UserError(
                f"The sandbox (sandbox.kind={config['kind']}) did not answer within {SANDBOX_TIMEOUT_S:.0f} s: start "
                "it or mend sandbox.* and try again."
            ) from error
        finally:
            await sandbox.close()
        return describe(sandbox)

    return asyncio.run(start_and_probe())


# Value of train.loggers or trace.backend -> the extra that has its library, and that library.
EXTRAS = {
    "mlflow": ("mlflow", "mlflow"),
    "wandb": ("wandb", "wandb"),
    "otlp": ("trace", "opentelemetry.exporter.otlp.proto.http"),
}


def check_extra(name: str, key: str, off: str) -> None:
    """Raises UserError where `key` has the value `name`, whose library is not installed; `off`: how to do without."""
    extra, library = EXTRAS.get(name, ("", ""))
    if extra and not _installed(library):
        raise UserError(
            f"{key}={name} needs {library}, which is not installed: "
            f"`pip install -e .[{extra}] -c launch/constraints-cpu.txt` (or -gpu.txt), or set {off}."
        )


def check_loggers(loggers: Iterable[str]) -> None:
    for name in loggers:
        check_extra(name, "train.loggers", "train.loggers without it")


def _installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # a package above it
        return False
