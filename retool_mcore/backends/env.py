"""The environment of a stage's process: what must be set before Python starts there."""

import os
from collections.abc import Mapping

from retool_mcore.backends.forked_python import PYTHON, SOCKET

# On every machine: no telemetry, no download behind the user's back, tokenizers quiet after a fork.
COMMON = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_DEDUP_LOGS": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "PYTHONWARNINGS": "ignore",
    "PYTHONUNBUFFERED": "1",
    "TQDM_MININTERVAL": "10",
}
# Where the loggers write, of which the first node's trainer is told; a key is the user's environment's alone.
LOGGERS = ("TENSORBOARD_DIR", "WANDB_MODE", "WANDB_DIR", "MLFLOW_TRACKING_URI")
GPU = {
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # Megatron: communication kernels must start in order under TP + SP
}
# With override_mcore_model_config.tp_overlap: a trainer process must see the other GPUs of its host, too; verl then
# takes its own by the number that Ray gave it.
TP_OVERLAP = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
CPU = {
    "VERL_PLATFORM": "cpu",
    "OMP_NUM_THREADS": "1",  # two trainer processes and vLLM share two cores
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "RAY_memory_usage_threshold": "0.98",
    "RAY_worker_niceness": "0",  # Ray's default 15 starves the workers beside any other process
    "TQ_NUM_THREADS": "2",
}


def stage_env(config: Mapping) -> dict[str, str]:
    """Environment for a stage of `config`: the caller's, plus what its device needs. The caller's values win.

    The device is `config.parallel.device`, "cpu" or "cuda".
    """
    cpu = config["parallel"]["device"] == "cpu"
    needed = COMMON | (CPU if cpu else GPU)
    if "wandb" not in (config.get("train") or {}).get("loggers", ()):
        needed["WANDB_MODE"] = "disabled"  # whatever a library would send by itself
    if (config["parallel"].get("megatron", {}).get("override_mcore_model_config") or {}).get("tp_overlap"):
        needed |= TP_OVERLAP
    return needed | dict(os.environ)


def worker_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a stage's workers on other nodes must be given: Ray starts them with the environment of its own start there.

    Named variables only: a path such as PYTHONPATH may be another one on every machine.
    """
    names = {*COMMON, *GPU, *TP_OVERLAP, *CPU, "VERL_FILE_LOGGER_PATH", *LOGGERS}
    names |= {"RETOOL_STAGE_ID", "RETOOL_HEARTBEAT", "RETOOL_JOB_END"}
    return {name: env[name] for name in sorted(names) if name in env}


def forks(env: Mapping[str, str]) -> bool:
    """Whether the processes of a stage with this environment are forked: on one machine's CPU, unless
    RETOOL_TEMPLATE=off.

    With CUDA, where a library that asks for a device at import would spoil every fork, it has not been tried. With
    more than one thread OpenMP's would be there when the template forks.
    """
    alone = "RAY_ADDRESS" not in env and env.get(SOCKET) != "off"
    return alone and (env.get("VERL_PLATFORM"), env.get("OMP_NUM_THREADS")) == ("cpu", "1")


def ray_runtime_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What Ray's runtime environment needs, so that its workers are forked."""
    return {"py_executable": env[PYTHON]} if forks(env) and PYTHON in env else {}
