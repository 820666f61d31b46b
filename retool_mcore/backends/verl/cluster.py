"""Ray for a run of RL: the cluster that RAY_ADDRESS names, or one of its own on this machine."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psutil
import ray
from omegaconf import OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

from retool_mcore.backends.env import RAY_CLUSTERS, ray_folder, ray_runtime_env, worker_env
from retool_mcore.backends.forked_python import PYTHON
from retool_mcore.backends.ray_job import InstalledFirst

STARTS = 3


def start_ray(verl) -> None:
    """Connect this process to Ray. verl: its configuration."""
    environment = get_ppo_ray_runtime_env(verl)
    environment["env_vars"] |= worker_env()
    environment |= ray_runtime_env()
    if "RAY_ADDRESS" in os.environ:
        ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=environment, job_config=InstalledFirst())
        return
    address = ray.util.get_node_ip_address()  # of the Ray that is about to start
    if os.environ.get(RAY_CLUSTERS) == "0" and address != "127.0.0.1":
        raise RuntimeError(
            f"Ray would listen on {address} and not on loopback: another release than {RAY_CLUSTERS}=0 is for?"
        )
    os.environ["RAY_TMPDIR"] = str(ray_folder())
    print(f"Ray and vLLM listen on {address}", flush=True)
    if "py_executable" in environment:
        sys.executable = os.environ[PYTHON]  # what Ray starts its workers with
    options: Any = OmegaConf.to_container(verl.ray_kwargs.ray_init, resolve=True)
    patiently(lambda: ray.init(**{**options, "runtime_env": environment, "job_config": InstalledFirst()}))


def patiently(start: Callable[[], Any]) -> Any:
    """Return the result of `start()`, which starts a Ray; start it again where Ray gave up on its own processes.

    Ray waits 30 s for them, which no setting changes, and a busy machine needs longer.
    """
    for attempt in range(1, STARTS + 1):
        try:
            return start()
        except Exception as error:
            if attempt == STARTS or "timed out during startup" not in str(error):
                raise
        print(f"Ray's processes were not there after 30 s (busy machine?): start {attempt + 1} of {STARTS}", flush=True)
        ray.shutdown()
        for child in psutil.Process().children(recursive=True):  # Ray leaves what it started
            with suppress(psutil.NoSuchProcess):
                if any("ray" in word for word in child.cmdline()[:2]):
                    child.kill()
