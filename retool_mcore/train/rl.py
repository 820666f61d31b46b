"""RL with tools in the rollout: verl's V1 trainer, whose step `STEP` shows. One process that starts or joins Ray."""

import sys
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.backends.check import assert_adapters
from retool_mcore.backends.verl.check import check_config
from retool_mcore.backends.verl.run import check_step, run_trainer
from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.backends.verl.task_runner import Runner
from retool_mcore.data.curriculum import load_curriculum
from retool_mcore.metrics.charts import write_dashboard
from retool_mcore.state import alarms, checkpoints, stop
from retool_mcore.train.long_prompts import fitting_files

VERL = "retool_mcore.backends.verl"

# The algorithm: what a step does, in order, and where. verl's trainer calls each (trainer/ppo/v1/trainer_base.py,
# `step`), or the agent loop workers, in processes of their own, do: from prompts to rewards.
STEP = {
    "prompts, with what an interrupted step had finished": f"{VERL}.take_over.TakeOver._next_train_batch",
    "episodes: the policy writes, programs run, the mask says which tokens are its own": (
        f"{VERL}.agent_loop.RetoolAgentLoop.run"
    ),
    "rewards": f"{VERL}.reward_fn.compute_score",
    "groups: those that teach nothing are replaced": f"{VERL}.replay_buffer.GroupFilters.sample",
    "mini-batches that say nothing about length": f"{VERL}.trainer.RetoolTrainerMixin._balance_batch",
    "log-probabilities by the policy that wrote": f"{VERL}.trainer.RetoolTrainerMixin._compute_old_log_prob",
    "advantages, between the recipe's two halves": f"{VERL}.trainer.RetoolTrainerMixin._compute_advantage",
    "update in Megatron, of a batch whose mask is audited": f"{VERL}.trainer.RetoolTrainerMixin._update_actor",
    "checkpoint": f"{VERL}.trainer.RetoolTrainerMixin._save_checkpoint",
    "push of the weights to vLLM, verified": f"{VERL}.trainer.RetoolTrainerMixin.on_step_end",
}


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "rl"
    last = checkpoints.repair(stage_dir / "checkpoints")
    print(f"RL starts {'from ' + last.name if last else 'at step 0'}")
    for key in ("train_files", "val_files"):
        files = config.verl.data[key]
        config.verl.data[key] = fitting_files(config, files, config.init_from, stage_dir / "prompts" / key)
    verl = verl_config(config, stage_dir)
    check_config(verl)
    if kept := load_curriculum(verl.retool.curriculum, verl.data.train_files, config.seed).problems:
        print(f"curriculum: RL draws from {len(kept)} problems")
    check_step(STEP.values())
    (stage_dir / "ALARM").unlink(missing_ok=True)
    write_dashboard("rl", config.train.loggers)
    run_trainer(verl, Runner)
    if alarms.ended(stage_dir) is not None:
        sys.exit(alarms.EXIT_CODE)
    if stop.stopped_after(stage_dir) is not None:
        sys.exit(stop.EXIT_CODE)
    policy = checkpoints.link_policy(stage_dir)
    print(f"RL policy: {policy or f'none was saved, as train.save_every={config.train.save_every} asks'}")


if __name__ == "__main__":
    main(sys.argv[1])
