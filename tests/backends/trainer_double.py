"""What every stand-in for the RL trainer's surroundings needs, whatever it is a test of."""

from pathlib import Path
from types import SimpleNamespace

from omegaconf import OmegaConf

from retool_mcore.backends.verl.agent_loop_worker import KeepingManager
from retool_mcore.data.curriculum import Curriculum
from retool_mcore.state import alarms

ROTATION = {"keep_last": 2, "keep_best": None, "best_is": "highest"}


def surround(trainer, folder: Path, config: dict) -> KeepingManager:
    """Give a trainer that was made without __init__ its configuration, `config` over defaults, and what verl and its
    first push would have left; returns the manager to call `fit` with."""
    (folder / "agent_loop.yaml").write_text("- {name: retool, sandbox: {kind: local}}")
    retool = {"stage_dir": str(folder), "rotation": ROTATION, "alarms": alarms.IGNORED, "verify_push_every": 0}
    defaults = {
        "retool": retool | {"save_minutes": None, "stop_after_worse": None},
        "actor_rollout_ref": {
            "actor": {"ppo_mini_batch_size": 4, "ppo_epochs": 1},
            "model": {"path": str(folder)},
            "rollout": {"agent": {"agent_loop_config_path": str(folder / "agent_loop.yaml")}},
        },
        "data": {"train_batch_size": 4},
        "global_profiler": {"steps": None},
    }
    trainer.config = OmegaConf.merge(defaults, config)
    trainer.use_critic, trainer.trainer_mode, trainer.parameter_sync_step = False, "sync", 1
    trainer.pushes = 1
    trainer.curriculum = Curriculum()
    trainer.observer = SimpleNamespace(batches=[], flush=lambda: None)
    return object.__new__(KeepingManager)
