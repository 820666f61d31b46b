"""The environment of a stage's process: what must be set before Python starts there."""

import os
import secrets
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from retool_mcore import python_path, resources, temporary
from retool_mcore.backends import forked_python
from retool_mcore.backends.cpu import CPU_THREADS
from retool_mcore.backends.forked_python import SOCKET
from retool_mcore.files import own_folder
from retool_mcore.recipes.pipeline import beside

# On every machine: no telemetry, no download behind the user's back, tokenizers quiet after a fork.
COMMON = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_DEDUP_LOGS": "0",
    # Ray would start a worker for each processor in advance. None of them has a run's environment, so none is used.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_enable_metrics_collection": "false",  # polls every process for a dashboard that is not started
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
    "PYTHONUNBUFFERED": "1",
    "TQDM_MININTERVAL": "10",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]:",  # torchrun's prefix, which runner/stage_log.py reads
}
# Servers listen on this machine's loopback: Ray, and vLLM, which takes Ray's address.
ONE_NODE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray's switch for it; a Slurm job, whose Ray has a token, sets it to 1
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "VLLM_HOST_IP": "127.0.0.1",
}
GPU = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron: communication kernels must start in order under TP + SP
    # An import must start no threads and ask for no devices: such a process cannot be forked.
    "OPENBLAS_NUM_THREADS": "1",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
CPU = {
    "VERL_PLATFORM": "cpu",
    # A process with threads cannot be forked; trainer and engine take parallel.threads later (cpu/torch_cpu.py).
    "OMP_NUM_THREADS": "1",
    # Spinning threads take the core of the thread they wait for: on a busy machine two took twice the time of one.
    "OMP_WAIT_POLICY": "passive",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "RAY_memory_usage_threshold": "0.98",
    "RAY_worker_niceness": "0",  # Ray's default 15 starves the workers next to any other process
    # Each engine and trainer would compile a sum or a count for seconds; enforce_eager=false removes this.
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHINDUCTOR_VEC_ISA_OK": "1",  # else each engine compiles and starts a program to learn what /proc/cpuinfo says
}
# 0: Ray keeps to this machine, as on systems that it has no clusters for.
RAY_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
JOB_SECRET = "RAY_AUTH_TOKEN"
SETTINGS = ("on", "off")  # what RETOOL_TEMPLATE may be besides the socket of a template that runs
FLIGHT_RECORDER = "TORCH_FR_DUMP_TEMP_FILE"  # PyTorch's name for the path of its dumps, to which it adds the rank
NCCL_TIMEOUT_S = "RETOOL_NCCL_TIMEOUT_S"  # of every process group of an engine on GPUs: parallel.nccl_timeout_minutes
# Where the loggers write, which the first node's trainer needs; a key stays in the user's environment.
LOGGERS = ("TENSORBOARD_DIR", "WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI")


def stage_env(config: Mapping) -> dict[str, str]:
    """Environment for a stage of `config`: the caller's, plus what its device needs. The caller's values win, but
    TMPDIR has a short name and the working folder is not searched for modules.

    The device is `config.parallel.device`, "cpu" or "cuda". Raises UserError as `temporary.variables` does.
    """
    cpu = config["parallel"]["device"] == "cpu"
    needed = COMMON | (CPU if cpu else GPU)
    if cpu and "OMP_NUM_THREADS" not in os.environ:
        needed[CPU_THREADS] = str(cpu_threads(config["parallel"]))
    if not config["parallel"].get("rollout", {}).get("enforce_eager", True):
        needed.pop("TORCH_COMPILE_DISABLE", None)
    if not cpu and (minutes := config["parallel"].get("nccl_timeout_minutes")):
        needed[NCCL_TIMEOUT_S] = str(60 * minutes)
    elsewhere = os.environ.get(RAY_CLUSTERS) == "1" and beside(config) > 0
    if config["parallel"].get("nodes", 1) == 1 and not elsewhere:  # a job's rollout engines are on other nodes
        needed |= ONE_NODE | ({} if "RAY_ADDRESS" in os.environ else job_secret())
    if "wandb" not in (config.get("train") or {}).get("loggers", ()):
        needed["WANDB_MODE"] = "disabled"  # whatever a library would send on its own
    return needed | dict(os.environ) | temporary.variables() | python_path.variables()


def cpu_threads(parallel: Mapping) -> int:
    """Return the threads of each process of a CPU layout: `parallel.threads`, or an equal share of the cores that are
    ours (resources.py).

    Trainer and engine take turns: each has the share that it would have without the other.
    """
    share = resources.processors() // parallel.get("gpus_per_node", 1)
    return parallel.get("threads", 1) or max(1, share)


def job_secret() -> dict[str, str]:
    """Return variables that keep other users out of a Ray that is about to start. They stand only in the environment of
    its processes, which no other user can read."""
    return {"RAY_AUTH_MODE": "token", JOB_SECRET: secrets.token_hex(32)}


def worker_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that a stage's workers on other nodes need: Ray starts them with the environment that it was
    started with on their node.

    Named variables only: a path such as PYTHONPATH may be another one on every machine.
    """
    names = {*COMMON, *GPU, *CPU, CPU_THREADS, "VERL_FILE_LOGGER_PATH", FLIGHT_RECORDER, NCCL_TIMEOUT_S, *LOGGERS}
    names |= {"PYTHONSAFEPATH", "RETOOL_STAGE_ID", "RETOOL_HEARTBEAT", "RETOOL_JOB_END"}
    return {name: env[name] for name in sorted(names) if name in env}


def forks(env: Mapping[str, str]) -> bool:
    """Whether the processes of a stage with this environment are forked: on a CPU, unless RETOOL_TEMPLATE=off or they
    are those of a Ray that somebody else has started; on GPUs where RETOOL_TEMPLATE=on asks for it.

    Libraries' threads do not outlive a fork: there must be none (runner/template.py).
    """
    asked = env.get(SOCKET, "" if on_cpu(env) else "off")
    if asked == "off" or ("RAY_ADDRESS" in env and not asked):
        return False
    return env.get("OMP_NUM_THREADS" if on_cpu(env) else "OPENBLAS_NUM_THREADS") == "1"


def template_of(env: Mapping[str, str]) -> str | None:
    """Return the socket of the template that this environment names; None when there is none yet."""
    return None if env.get(SOCKET) in (None, *SETTINGS) else env[SOCKET]


def on_cpu(env: Mapping[str, str]) -> bool:
    """Whether a stage with this environment runs on a CPU."""
    return env.get("VERL_PLATFORM") == "cpu"


def ray_runtime_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return Ray's runtime environment for workers that are forked, on each node by the node's own template."""
    here = [sys.executable, "-IS", forked_python.__file__]
    return {"py_executable": shlex.join(here)} if forks(env) and template_of(env) else {}


def ray_folder() -> Path:
    """The folder for Ray's sessions: that of RAY_TMPDIR, or one of this user's alone, since Ray's is open to everybody.
    Its path is short enough for Ray's sockets."""
    if ray_tmpdir := os.environ.get("RAY_TMPDIR"):
        folder = Path(ray_tmpdir).absolute()
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folder = Path(tempfile.gettempdir(), f"retool-ray-{os.geteuid()}")
        own_folder(folder)
    return temporary.short(folder, temporary.RAY_ROOM)
