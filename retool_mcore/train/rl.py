"""RL with the interpreter in the rollout: verl's V1 trainer, sync mode. One process that starts or joins Ray.

A step, in verl's trainer: prompts -> agent loops (vLLM and the sandbox, retool_mcore.rollout) -> rewards -> old
log-probs -> group-relative advantages -> Megatron update -> weights pushed to vLLM. Ours: the agent loop, the reward,
the records and metrics (train/trainer.py), and checkpoints that count only when whole.
"""

import os
import sys
from pathlib import Path

import ray
from omegaconf import OmegaConf, open_dict
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from retool_mcore import stop
from retool_mcore.plan import derived
from retool_mcore.platform.check import assert_adapters
from retool_mcore.platform.env import worker_env
from retool_mcore.rollout.episode import LIMITS
from retool_mcore.train import alarms, checkpoints
from retool_mcore.train.task_runner import Runner

# By data.environment: what a trajectory acts on besides the tools that a process shares.
AGENT_LOOPS = {
    None: "retool_mcore.rollout.agent_loop.RetoolAgentLoop",
    "repository": "retool_mcore.tasks.agent_loop.RepositoryAgentLoop",
}


def write_agent_loop(config, path: Path) -> None:
    """Write the file from which verl builds our agent loop in every rollout worker."""
    environment = config.data.get("environment")
    stages = {"stages": config.data.stages} if environment else {}
    loop = {
        "name": "retool",
        "_target_": AGENT_LOOPS[environment],
        **stages,
        "format": config.rollout.format,
        "limits": {name: config.rollout[name] for name in LIMITS},
        "sandbox": config.sandbox,
        "timeout_s": config.sandbox.timeout_s,
        "toolbox": config.toolbox,
        "seed": alarms.request_seed(path.parent, config.seed),
    }
    path.write_text(OmegaConf.to_yaml(OmegaConf.create([loop]), resolve=True))


def verl_config(config, stage_dir: Path):
    """The config that verl's trainer gets: its own section and where our pieces find their settings."""
    derived.fill(config)
    agent_loop = stage_dir / "agent_loop.yaml"
    write_agent_loop(config, agent_loop)
    with open_dict(config):
        verl = config.verl
        verl.actor_rollout_ref.rollout.agent.agent_loop_config_path = str(agent_loop)
        verl.actor_rollout_ref.rollout.agent.agent_loop_manager_class = "retool_mcore.rollout.worker.KeepingManager"
        verl.reward.custom_reward_function.reward_kwargs = {
            "recipe": config.recipe,
            "max_response_tokens": config.rollout.max_response_tokens,
        }
        verl.trainer.checkpoint_callback_class = "retool_mcore.train.trainer.MarkComplete"
        verl.retool = {
            "recipe": config.recipe,
            "sandbox_errors": config.rollout.sandbox_errors,
            "stage_dir": str(stage_dir),
            "trajectories": str(stage_dir / "trajectories"),
            "keep_trajectory_bytes": config.train.keep_trajectory_bytes,
            "texts": {"every": config.train.text_every, "count": config.train.text_samples},
            "live": config.rollout.get("live"),
            "cache_tokens": None,  # the trainer tells, once the engines are there
            "rotation": checkpoints.rotation(config.train),
            "stop_after_worse": config.train.get("stop_after_worse"),
            "verify_push_every": config.train.get("verify_push_every", 0),
            "alarms": config.get("alarms", alarms.IGNORED),
            "save_minutes": config.train.save_minutes,
        }
        for role in (verl.actor_rollout_ref.actor, verl.critic):
            role.megatron.override_mcore_model_config.update(alarms.engine_switches(verl.retool.alarms))
            role.megatron.override_ddp_config = {
                **(role.megatron.override_ddp_config or {}),
                "check_for_nan_in_grad": False,  # Megatron's own check would kill a rank before any answer
            }
    if config.get("trace", {}).get("backend", "none") != "none":
        from retool_mcore.rollout import tracing  # imports MLflow, which only a traced run needs

        tracing.enable(verl, agent_loop, name=config.name, prompts=config.trace.prompts)
    return verl


def join_cluster(verl) -> None:
    """Connect to the cluster that RAY_ADDRESS names, before verl would start one of its own on this machine."""
    runtime_env = get_ppo_ray_runtime_env(verl)
    runtime_env["env_vars"] |= {"TRANSFER_QUEUE_ENABLE": "1"} | worker_env()
    ray.init(address=os.environ["RAY_ADDRESS"], runtime_env=runtime_env)


def run_trainer(verl, runner_class: type[Runner]) -> None:
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


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "rl"
    last = checkpoints.repair(stage_dir / "checkpoints")
    print(f"RL starts {'from ' + last.name if last else 'at step 0'}")
    verl = verl_config(config, stage_dir)
    validate_config(verl, use_reference_policy=need_reference_policy(verl), use_critic=need_critic(verl))
    (stage_dir / "ALARM").unlink(missing_ok=True)
    run_trainer(verl, Runner)
    if alarms.ended(stage_dir) is not None:
        sys.exit(alarms.EXIT_CODE)
    if stop.stopped_after(stage_dir) is not None:
        sys.exit(stop.EXIT_CODE)
    policy = checkpoints.link_policy(stage_dir)
    print(f"RL policy: {policy or f'none was saved, as train.save_every={config.train.save_every} asks'}")


if __name__ == "__main__":
    main(sys.argv[1])
