"""verl's synchronous V1 trainer, seen into: every step's trajectories on disk, behaviour metrics, whole checkpoints."""

import json
from pathlib import Path

import ray
import transfer_queue
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from retool_mcore import stop
from retool_mcore.algo.replay import build_replay_buffer
from retool_mcore.algo.step import RecipeStep
from retool_mcore.metrics.behaviour import behaviour
from retool_mcore.metrics.records import write_step
from retool_mcore.train import checkpoints
from retool_mcore.train.async_save import SavingWorker

POLL_S = 0.05


class MarkComplete(CheckpointCallback):
    """Called by verl after the last file of a checkpoint is written or, with async_save, scheduled."""

    def on_save(self, trainer, global_step, checkpoint_dir, async_save=False, **kwargs):
        if async_save:
            trainer.being_written = True
        else:
            checkpoints.mark_complete(Path(checkpoint_dir))


class RetoolTrainer(PPOTrainerSync):
    """PPOTrainerSync; `config.retool` holds `stage_dir`, `trajectories` (a folder), `keep_trajectory_bytes` and
    `rotation`, the arguments of checkpoints.rotate."""

    being_written = False  # whether a checkpoint's writes are under way

    def __init__(self, config):
        super().__init__(config)
        self.recipe_step = RecipeStep(config.retool.recipe, Path(config.retool.stage_dir))
        # verl looks every 2 s whether the rollouts are done: half of a short step is then waiting.
        self.replay_buffer.poll_interval = POLL_S

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        self.role_worker_mapping |= {
            role: ray.remote(SavingWorker) for role in (Role.ActorRollout, Role.ActorRolloutRef) if role in self.mapping
        }

    def fit(self, agent_loop_manager):
        super().fit(agent_loop_manager)
        self.finish_saves(blocking=True)

    def on_train_begin(self):
        super().on_train_begin()
        self.saved_step = self.global_steps - 1  # what this attempt started from

    def on_step_begin(self):
        """Raises StopRequested where it is asked for and nothing would be lost: the last step is saved and logged."""
        super().on_step_begin()
        self.finish_saves(blocking=False)
        if self.saved_step == self.global_steps - 1 and stop.requested(Path(self.config.retool.stage_dir)):
            self._shutdown_dump_executor()
            self.finish_saves(blocking=True)
            raise stop.StopRequested(self.saved_step)

    def on_step_end(self):
        # Before vLLM wakes up to take the new weights: afterwards the device memory is its own.
        if self.saved_step != self.global_steps and stop.requested(Path(self.config.retool.stage_dir)):
            self._save_checkpoint()
        super().on_step_end()

    def _save_checkpoint(self):
        self.finish_saves(blocking=True)
        super()._save_checkpoint()
        self.saved_step = self.global_steps

    def finish_saves(self, blocking: bool) -> None:
        """Declare the checkpoints whole whose writes have ended on every rank (blocking: wait for them), and rotate."""
        stage_dir = Path(self.config.retool.stage_dir)
        if self.being_written:
            for step in self.actor_rollout_wg.finish_saves(blocking)[0]:
                checkpoints.mark_complete(stage_dir / "checkpoints" / f"global_step_{step}")
                self.being_written = False
        checkpoints.rotate(stage_dir, **self.config.retool.rotation)

    def _build_replay_buffer(self):
        return build_replay_buffer(self)

    def _compute_advantage(self, batch, metrics):
        metrics |= self.recipe_step.before_advantages(batch, self.global_steps)
        batch = super()._compute_advantage(batch, metrics)
        self.recipe_step.after_advantages(batch)
        return batch

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        records = read_records(batch, global_steps)
        metrics.update({f"behaviour/{name}": value for name, value in behaviour(records).items()})
        metrics["reward/accuracy"] = sum(r["acc"] for r in records) / len(records)
        retool = self.config.retool
        write_step(Path(retool.trajectories), global_steps, records, keep_bytes=retool.keep_trajectory_bytes)


def read_records(batch, step: int) -> list[dict]:
    """The trajectories of a batch in TransferQueue as records (metrics/records.py), in the order of their keys."""
    rows = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    keys = sorted(key for key, _ in rows)
    fields = ["extra_fields", "reward_model", "data_source", "index"]
    data = transfer_queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    columns = [[getattr(value, "data", value) for value in data[field]] for field in fields]
    records = []
    for key, extra, reward_model, source, index in zip(keys, *columns, strict=True):
        outcome = extra["reward_extra_info"]
        records.append(
            json.loads(extra["trajectory"])
            | {"step": step, "uid": key.split("_")[0], "index": int(index), "data_source": source}
            | {"score": float(outcome["score"]), "acc": float(outcome["acc"]), "pred": str(outcome["pred"])}
            | {"ground_truth": str(reward_model["ground_truth"])}
        )
    return records


class Runner(TaskRunnerV1.__ray_metadata__.modified_class):
    """verl's task runner, an actor on the head node, with our trainer in the place of the sync one.

    The mode must stay "sync": by that name verl chooses its replay buffer and what it checkpoints, so a name of our own
    cannot be registered, and `register_trainer` refuses to replace one.
    """

    def run(self, config):
        trainer_base.TRAINER_REGISTRY["sync"] = RetoolTrainer
        try:
            super().run(config)
        except stop.StopRequested as stopped:
            stop.honour(Path(config.retool.stage_dir), stopped.step)
