"""The cold start: verl's SFT trainer on the Megatron engine. Started by torchrun, one process a device.

What is ours: the data set (rendered by the rollout's own format code, interpreter tokens masked), checkpoints that
count only when whole, a stop at a step on request, and step time and throughput in the metrics. Everything else is
verl's.
"""

import math
import sys
import time
from functools import partial
from pathlib import Path

import torch
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from retool_mcore import stop
from retool_mcore.platform.check import assert_adapters
from retool_mcore.train import checkpoints


class MarkingHandler(CheckpointHandler):
    """verl's handler; a checkpoint is declared whole after every rank has written its part."""

    def save_checkpoint(self, step):
        super().save_checkpoint(step)  # ends with a barrier
        if self.rank == 0:
            checkpoints.mark_complete(Path(self.default_local_dir) / f"global_step_{step}")
        self.saved_step = step

    def _load_dataloader_state(self, checkpoint_path):
        # At the end of an epoch the loader's state is "nothing left", and verl would pass that off as the next epoch.
        if self.resume_global_step % len(self.train_dataloader):
            super()._load_dataloader_state(checkpoint_path)


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
        self.stop_at_request()

    def stop_at_request(self):
        """Take over verl's call of one step (`_train_batch`): its loop has no other place to stop at."""
        self.stopping = False
        self.training_client.train_batch = partial(self._train_batch, self.training_client.train_batch)

    def _train_batch(self, train_batch, data):
        """One step by verl's `train_batch`, timed; the one after a requested save raises StopRequested instead."""
        if self.stopping:
            raise stop.StopRequested(self.ckpt_handler.saved_step)
        start, tokens = time.monotonic(), data["input_ids"].values().numel()
        output = train_batch(data=data)
        seconds = time.monotonic() - start
        if self.engine.is_mp_src_rank_with_outputs():
            metrics = tensordict_utils.get(output, "metrics")
            metrics["timing/step_seconds"] = seconds
            metrics["perf/tokens_per_second"] = tokens * self.engine.get_data_parallel_size() / seconds
        self.stopping = self._all_asked_to_stop()
        if self.stopping:
            self.save_freq = 1  # verl's loop, which logs and validates first, then saves this very step
        return output

    def _all_asked_to_stop(self) -> bool:
        """What rank 0 sees, on every rank: the file may appear while they look one after the other."""
        asked = self.rank == 0 and stop.requested(Path(self.config.trainer.default_local_dir).parent)
        flag = torch.tensor(int(asked), device=self.device_name)
        torch.distributed.broadcast(flag, src=0)
        return bool(flag)


def main(config_path: str) -> None:
    assert_adapters()
    config = OmegaConf.load(config_path)
    stage_dir = Path(config.run_dir) / "sft"
    initialize_global_process_group()
    first = torch.distributed.get_rank() == 0
    if first:
        checkpoints.repair(stage_dir / "checkpoints")
    torch.distributed.barrier()
    try:
        ColdStart(config.verl).fit()
    except stop.StopRequested as stopped:
        # Every rank ends well: torchrun would turn any other exit code into 1, so the file alone tells the launcher.
        if first:
            stop.honour(stage_dir, stopped.step)
    else:
        if first:
            print(f"SFT policy: {checkpoints.link_policy(stage_dir)}")
    torch.distributed.barrier()
    destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
