"""verl's RL trainer in a process of its own, in a Ray cluster that is there or that it starts."""

import os

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from retool_mcore.platform.env import worker_env


def check_config(verl) -> None:
    """verl's own checks of its configuration."""
    validate_config(verl, use_reference_policy=need_reference_policy(verl), use_critic=need_critic(verl))


def join_cluster(verl) -> None:
    """Connect to the cluster that RAY_ADDRESS names, before verl would start one of its own on this machine."""
    runtime_env = get_ppo_ray_runtime_env(verl)
    runtime_env["env_vars"] |= {"TRANSFER_QUEUE_ENABLE": "1"} | worker_env()
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=runtime_env)


def run_trainer(verl, runner_class: type) -> None:
    """verl's trainer in an actor of `runner_class`, to its end, on the cluster of RAY_ADDRESS or one of its own."""
    if "RAY_ADDRESS" in os.environ:
        join_cluster(verl)
        # On this node, where the launcher sees it: Ray would put it anywhere.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        runner = ray.remote(scheduling_strategy=here)(runner_class)
    else:
        runner = ray.remote(runner_class)
    run_ppo(verl, task_runner_class=runner)
    ray.shutdown()
