"""RL with the interpreter in the rollout: verl's V1 trainer, sync mode. One process that starts or joins Ray.

A step, in verl's trainer: prompts -> agent loops (vLLM and the sandbox, retool_mcore.rollout) -> rewards -> old
log-probs -> group-relative advantages -> Megatron update -> weights pushed to vLLM. Ours: the agent loop, the reward,
the records and metrics (train/trainer.py), and checkpoints that count only when whole.
"""

import sys
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore import stop
from retool_mcore.backends.verl.run import check_config, run_trainer
from retool_mcore.backends.verl.settings import verl_config
from retool_mcore.platform.check import assert_adapters
from retool_mcore.train import alarms, checkpoints
from retool_mcore.train.task_runner import Runner


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "rl"
    last = checkpoints.repair(stage_dir / "checkpoints")
    print(f"RL starts {'from ' + last.name if last else 'at step 0'}")
    verl = verl_config(config, stage_dir)
    check_config(verl)
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
