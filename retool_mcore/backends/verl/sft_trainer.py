"""verl's SFT trainer: checkpoints that count only when whole, a stop at a step on request, timed steps."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from verl.trainer.sft_trainer import SFTTrainer
from verl.utils import tensordict_utils
from verl.utils.checkpoint import CheckpointHandler
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from retool_mcore.backends.megatron import engine
from retool_mcore.data.sft_dataset import FilledUp
from retool_mcore.state import checkpoints, heartbeat, stop
from retool_mcore.state.schedule import Schedule

EPOCHS_APART = 1_000_003  # PyTorch's sampler adds the epoch to the seed: two seeds must not share their epochs


@contextmanager
def process_group() -> Iterator[bool]:
    """torchrun's processes as one group; whether this is its first. They leave it together."""
    initialize_global_process_group()
    yield torch.distributed.get_rank() == 0
    torch.distributed.barrier()
    destroy_global_process_group()


class MarkingHandler(CheckpointHandler):
    """verl's handler; a checkpoint is declared whole after every rank has written its part."""

    rotation: dict  # arguments of checkpoints.rotate
    saved: Mapping[str, float] = {}  # on rank 0: metrics of the last checkpoint until they are taken
    save_seconds = 0.0  # what saving has cost the steps since the last one that was logged

    def save_checkpoint(self, step):
        start = time.monotonic()
        if self.rank == 0:
            heartbeat.beat(heartbeat.TRAINER, heartbeat.SAVE)
        super().save_checkpoint(step)  # ends with a barrier
        self.saved_step = step
        if self.rank == 0:
            self.saved = checkpoints.declare_whole(checkpoints.folder_of(self.default_local_dir, step), start)
            checkpoints.rotate(Path(self.default_local_dir).parent, **self.rotation)
        self.save_seconds += time.monotonic() - start

    def load_checkpoint(self):
        if self.rank == 0:
            heartbeat.beat(heartbeat.TRAINER, heartbeat.LOAD)
        return super().load_checkpoint()

    def _load_dataloader_state(self, checkpoint_path):
        # At the end of an epoch the loader's state is "nothing left", and verl would pass that off as the next epoch.
        if self.resume_global_step % len(self.train_dataloader):
            # All ranks have read as many batches, and the first rank's file is there in every layout.
            state = torch.load(Path(checkpoint_path, "data_0.pt"), map_location="cpu", weights_only=False)
            _recount(state, self.train_dataloader.batch_size)
            self.train_dataloader.load_state_dict(state)


def _recount(state: Any, batch: int) -> None:
    """Let every sampler in a StatefulDataLoader's state stand behind as many batches as before, of `batch` examples."""
    for part in state.values() if isinstance(state, dict) else ():
        _recount(part, batch)
    if isinstance(state, dict) and (sampler := state.get("_sampler_iter_state")):
        sampler["samples_yielded"] = state["_sampler_iter_yielded"] * batch


class StepByStep:
    """verl's training worker for its loop; the trainer runs each step and each batch of a validation."""

    def __init__(self, worker, trainer: "ColdStart"):
        self.worker, self.trainer = worker, trainer

    def train_batch(self, data):
        return self.trainer.train_batch(self.worker.train_batch, data)

    def infer_batch(self, data):
        return self.trainer.validate_batch(self.worker.infer_batch, data)

    def __getattr__(self, name):
        return getattr(self.worker, name)


class ColdStart(SFTTrainer):
    """verl's SFT trainer with `total_training_steps` that may span epochs, our checkpoints, and timed steps."""

    def _build_dataloader(self):
        """Build verl's loaders in the order that the run's seed draws, with all validation rows: verl 0.9.1 reads no
        seed here and drops the rows after the last whole batch."""
        if self.val_dataset:
            self.val_dataset, self.validated = FilledUp(self.val_dataset, self.config.data.train_batch_size), 0
        super()._build_dataloader()
        self.train_sampler.seed = self.config.trainer.seed * EPOCHS_APART

    def _init_engine(self):
        if self.config.trainer.total_training_steps is not None:
            # verl stops at the last epoch without saving when the steps do not fit into it.
            needed = math.ceil(self.config.trainer.total_training_steps / len(self.train_dataloader))
            self.config.trainer.total_epochs = max(needed, 1)
        super()._init_engine()

    def _build_ckpt_handler(self):
        trainer = self.config.trainer
        self.ckpt_handler = MarkingHandler(
            self.engine,
            self.train_dataloader,
            default_local_dir=trainer.default_local_dir,
            max_ckpt_to_keep=trainer.max_ckpt_to_keep,
            resume_mode=trainer.resume_mode,
            resume_from_path=trainer.resume_from_path,
            lora_train_meta=self._get_lora_train_meta(),
        )
        self.ckpt_handler.rotation = self.config.retool.rotation

    def fit(self):
        self.step, self.save_every = self.resume_global_step, self.save_freq
        self.schedule = Schedule(OmegaConf.select(self.config, "retool.save_minutes"), self.save_every)
        super().fit()

    def _build_engine(self):
        engine.register_engines()
        super()._build_engine()
        self.step_with(self.training_client)

    def step_with(self, worker):
        """Train with `worker` step by step: verl's loop has no other place to stop at."""
        self.training_client, self.stopping = StepByStep(worker, self), False

    def train_batch(self, train_batch, data):
        """Run one step by verl's `train_batch`, timed; the one after a requested save raises StopRequested instead."""
        if self.stopping:
            raise stop.StopRequested(self.ckpt_handler.saved_step)
        start, tokens = time.monotonic(), data["input_ids"].values().numel()
        if self.ckpt_handler.save_seconds:
            self.schedule.save_ended(self.ckpt_handler.save_seconds)  # of the step before
        if self.rank == 0:
            self.schedule.begin_step(self.step + 1)
            heartbeat.beat(heartbeat.TRAINER, heartbeat.UPDATE)
        output = train_batch(data=data)
        if self.rank == 0:
            heartbeat.beat(heartbeat.TRAINER, heartbeat.VALIDATION)  # and the step's line in the log
        seconds = time.monotonic() - start
        self.stopping, due, saved = self._said_by_first_rank()
        if self.engine.is_mp_src_rank_with_outputs():
            metrics = tensordict_utils.get(output, "metrics")
            metrics["timing/step_seconds"] = seconds
            metrics["timing/save_seconds"] = self.ckpt_handler.save_seconds  # of the save after the step before
            metrics["perf/tokens_per_second"] = tokens * self.engine.get_data_parallel_size() / seconds
            metrics |= saved
        self.ckpt_handler.save_seconds = 0.0
        self.step += 1
        # verl's loop logs and validates first, then saves this very step.
        self.save_freq = 1 if self.stopping or due else self.save_every
        return output

    def validate_batch(self, infer_batch, data):
        """The next batch of a validation by verl's `infer_batch`; its loss is weighted, so that `val/loss` is the mean
        over all targets of the validation set."""
        output = infer_batch(data)
        number, self.validated = self.validated, (self.validated + 1) % len(self.val_dataset.targets)
        if self.engine.is_mp_src_rank_with_outputs():
            tensordict_utils.get(output, "metrics")["loss"] *= self.val_dataset.weight(number)
        return output

    def _said_by_first_rank(self) -> tuple[bool, bool, dict[str, float]]:
        """Whether it sees a reason to stop and whether a save is due, which the ranks would see at different moments,
        and the metrics of a checkpoint that has become whole: another rank may be the one that logs."""
        decisions: list = [None] * 3
        if self.rank == 0:
            requested = stop.requested(Path(self.config.trainer.default_local_dir).parent)
            decisions = [requested or not self.schedule.another_fits(), self.schedule.due(), self.ckpt_handler.saved]
            self.ckpt_handler.saved = {}
        torch.distributed.broadcast_object_list(decisions, src=0)
        return decisions[0], decisions[1], decisions[2]
