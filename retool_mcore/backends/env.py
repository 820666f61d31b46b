"""The environment of a stage's process: what must be set before Python starts there."""

import os
from collections.abc import Mapping
from pathlib import Path

import yaml

from retool_mcore.backends.forked_python import PYTHON, SOCKET

COMMON, GPU, TP_OVERLAP, CPU = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).values()


def stage_env(config: Mapping) -> dict[str, str]:
    """Environment for a stage of `config`: the caller's, plus what its device needs. The caller's values win.

    The device is `config.parallel.device`, "cpu" or "cuda".
    """
    cpu = config["parallel"]["device"] == "cpu"
    needed = COMMON | (CPU if cpu else GPU)
    if (config["parallel"].get("megatron", {}).get("override_mcore_model_config") or {}).get("tp_overlap"):
        needed |= TP_OVERLAP
    return needed | dict(os.environ)


def worker_env(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What a stage's workers on other nodes must be given: Ray starts them with the environment of its own start there.

    Named variables only: a path such as PYTHONPATH may be another one on every machine.
    """
    names = {*COMMON, *GPU, *TP_OVERLAP, *CPU, "VERL_FILE_LOGGER_PATH", "TENSORBOARD_DIR"}
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
