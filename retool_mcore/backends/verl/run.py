"""verl's RL trainer in a process of its own, in a Ray cluster that is there or that it starts."""

import inspect
import os
import pydoc
import sys
from collections.abc import Iterable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from retool_mcore.backends.env import RAY_CLUSTERS, ray_folder, ray_runtime_env, worker_env
from retool_mcore.backends.forked_python import PYTHON
from retool_mcore.backends.ray_job import installed_first
from retool_mcore.backends.verl.cluster import patiently
from retool_mcore.backends.verl.trainer import RetoolTrainerMixin


def check_step(methods: Iterable[str]) -> None:
    """Raises RuntimeError unless `methods` (dotted names) exist and verl calls those of its trainer in this order."""
    source = "".join(inspect.getsource(part) for part in (PPOTrainer._step_once, PPOTrainer.fit))
    after = 0
    for dotted in methods:
        name = dotted.rpartition(".")[2]
        if pydoc.locate(dotted) is None:
            raise RuntimeError(f"{dotted} is not there: the table of a step (train/rl.py) is wrong.")
        if name not in vars(PPOTrainer) or name not in vars(RetoolTrainerMixin):
            continue
        found = source.find(f"self.{name}(", after)
        if found < 0:
            raise RuntimeError(f"verl's step does not call {name} where train/rl.py says: another release of verl?")
        after = found


def join_cluster(verl) -> None:
    """Connect to the cluster that RAY_ADDRESS names, before verl would start one of its own on this machine."""
    runtime_env = get_ppo_ray_runtime_env(verl)
    runtime_env["env_vars"] |= {"TRANSFER_QUEUE_ENABLE": "1"} | worker_env()
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=runtime_env | ray_runtime_env())


def run_trainer(verl, runner_class: type) -> None:
    """verl's trainer in an actor of `runner_class`, to its end, on the cluster of RAY_ADDRESS or one of its own."""
    with installed_first():
        _run_trainer(verl, runner_class)


def _run_trainer(verl, runner_class: type) -> None:
    if "RAY_ADDRESS" in os.environ:
        join_cluster(verl)
        # On this node, where the launcher sees it: Ray would put it anywhere.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        runner = ray.remote(scheduling_strategy=here)(runner_class)
    else:
        address = ray.util.get_node_ip_address()  # of the Ray that verl is about to start
        if os.environ.get(RAY_CLUSTERS) == "0" and address != "127.0.0.1":
            raise RuntimeError(
                f"Ray would listen on {address} and not on loopback: another release than {RAY_CLUSTERS}=0 is for?"
            )
        os.environ["RAY_TMPDIR"] = str(ray_folder())
        print(f"Ray, TransferQueue and vLLM listen on {address}")
        if "py_executable" in ray_runtime_env():
            sys.executable = os.environ[PYTHON]  # what Ray starts its workers with
        runner = ray.remote(runner_class)
    patiently(lambda: run_ppo(verl, task_runner_class=runner))
    ray.shutdown()
