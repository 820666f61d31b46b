"""The cold start: verl's SFT trainer on the Megatron engine. Started by torchrun, one process a device.

What is ours: the data set (rendered by the rollout's own format code, interpreter tokens masked), checkpoints that
count only when whole, a stop at a step on request, and step time and throughput in the metrics. Everything else is
verl's.
"""

import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf, open_dict

from retool_mcore.backends.check import assert_adapters
from retool_mcore.backends.verl.sft_trainer import ColdStart, process_group
from retool_mcore.metrics.charts import write_dashboard
from retool_mcore.state import checkpoints, stop


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "sft"
    with process_group() as first:
        if first:
            checkpoints.repair(stage_dir / "checkpoints")
            write_dashboard("sft", config.train.loggers)
        torch.distributed.barrier()
        with open_dict(config):
            config.verl.retool = {"rotation": checkpoints.rotation(config.train)}
            config.verl.retool.save_minutes = config.train.save_minutes
        try:
            ColdStart(config.verl).fit()
        except stop.StopRequested as stopped:
            # Every rank ends well: torchrun would turn any other exit code into 1, so the file alone tells the
            # launcher.
            if first:
                stop.honour(stage_dir, stopped.step)
        else:
            if first:
                print(f"SFT policy: {checkpoints.link_policy(stage_dir)}")


if __name__ == "__main__":
    # Megatron's queue of write results is a spawned process, which would import this module, and all of verl with it,
    # again: 10 s within the first save. multiprocessing/spawn.py:_fixup_main_from_name passes over such a name.
    __spec__.name += ".__main__"
    main(sys.argv[1])
