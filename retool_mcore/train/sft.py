"""The cold start: verl's SFT trainer on the Megatron engine. Started by torchrun, one process a device.

What is ours: the data set (rendered by the rollout's own format code, interpreter tokens masked), checkpoints that
count only when whole, and step time and throughput in the metrics. Everything else is verl's.
"""

import math
import sys
import time
from pathlib import Path

import torch
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from retool_mcore.platform.check import assert_adapters
from retool_mcore.train import checkpoints


class MarkingHandler(CheckpointHandler):
    """verl's handler; a checkpoint is declared whole after every rank has written its part."""

    def save_checkpoint(self, step):
        super().save_checkpoint(step)  # ends with a barrier
        if self.rank == 0:
            checkpoints.mark_complete(Path(self.default_local_dir) / f"global_step_{step}")


class ColdStart(SFTTrainer):
    """verl's SFT trainer with `total_training_steps` that may span epochs, our checkpoints, and timed steps."""

    def _init_engine(self):
        if self.config.trainer.total_training_steps is not None:
            # verl stops at the last epoch without saving when the steps do not fit into it.
            needed = math.ceil(self.config.trainer.total_training_steps / len(self.train_dataloader))
            self.config.trainer.total_epochs = max(needed, 1)
        super()._init_engine()

    def _build_ckpt_handler(self):
        super()._build_ckpt_handler()
        self.ckpt_handler.__class__ = MarkingHandler

    def _build_engine(self):
        super()._build_engine()
        train_batch = self.training_client.train_batch

        def timed_train_batch(data):
            start, tokens = time.monotonic(), data["input_ids"].values().numel()
            output = train_batch(data=data)
            seconds = time.monotonic() - start
            if self.engine.is_mp_src_rank_with_outputs():
                metrics = tensordict_utils.get(output, "metrics")
                metrics["timing/step_seconds"] = seconds
                metrics["perf/tokens_per_second"] = tokens * self.engine.get_data_parallel_size() / seconds
            return output

        self.training_client.train_batch = timed_train_batch


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "sft"
    initialize_global_process_group()
    first = torch.distributed.get_rank() == 0
    if first:
        checkpoints.repair(stage_dir / "checkpoints")
    torch.distributed.barrier()
    ColdStart(config.verl).fit()
    if first:
        print(f"SFT policy: {checkpoints.link_policy(stage_dir)}")
    torch.distributed.barrier()
    destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
