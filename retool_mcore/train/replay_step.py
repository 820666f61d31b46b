"""One recorded step through the trainer again, without a rollout engine (backends/verl/replay_step.py)."""

import sys
from pathlib import Path

from omegaconf import OmegaConf

from retool_mcore.backends.check import assert_adapters
from retool_mcore.backends.verl.replay_step import ReplayRunner, replay_config
from retool_mcore.backends.verl.run import run_trainer


def main(config_path: str) -> None:
    assert_adapters()
    verl = replay_config(OmegaConf.load(config_path), Path(config_path).parent)
    run_trainer(verl, ReplayRunner)


if __name__ == "__main__":
    main(sys.argv[1])
