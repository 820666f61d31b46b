"""What a trainer of verl does with the trajectories of an interrupted step (state/policy_identity.py).

Only of the synchronous trainer. Where rollouts run ahead, verl saves TransferQueue with every checkpoint.
"""

from pathlib import Path

from verl.utils import tensordict_utils

from retool_mcore.backends.verl.agent_loop_worker import COLUMN, KeepingManager
from retool_mcore.files import write_atomically
from retool_mcore.rollout import unfinished
from retool_mcore.state import checkpoints
from retool_mcore.state.policy_identity import IDENTITY, PolicyIdentity


class TakeOver:
    """What a trainer of verl does about it; stands before `RetoolTrainerMixin` among its bases."""

    identity: PolicyIdentity | None = None  # where no checkpoint is ever written, nothing is kept either

    def fit(self, agent_loop_manager):
        if self.config.trainer.save_freq > 0 and not isinstance(agent_loop_manager, KeepingManager):
            raise RuntimeError(f"{type(agent_loop_manager).__name__} would not keep what it finishes.")
        super().fit(agent_loop_manager)

    def on_train_begin(self):
        super().on_train_begin()
        if self.config.trainer.save_freq > 0:
            self.identity = PolicyIdentity(self.config, self.saved_step)

    def _next_train_batch(self, num_prompts=None):
        batch = super()._next_train_batch(num_prompts)
        if self.identity is not None:
            stage_dir = Path(self.config.retool.stage_dir)
            folder = unfinished.folder_of(stage_dir, self.global_steps, self.identity.policy)
            tensordict_utils.assign_non_tensor_data(batch, COLUMN, str(folder))
        return batch

    def step(self, metrics, timing_raw):
        batch = super().step(metrics, timing_raw)
        if self.identity is not None:
            self.identity.advance([record for seen in self.observer.batches for record in seen.records])
        return batch

    def save_notes(self, checkpoint):
        super().save_notes(checkpoint)
        if self.identity is not None:
            write_atomically(checkpoint / IDENTITY, self.identity.link)

    def finish_saves(self, blocking):
        super().finish_saves(blocking)
        stage_dir = Path(self.config.retool.stage_dir)
        if (last := checkpoints.latest(stage_dir / "checkpoints")) is not None:
            unfinished.remove_through(stage_dir, checkpoints.step_of(last))

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        records = [record for seen in self.observer.batches for record in seen.records]
        metrics["rollout/taken_over"] = taken = sum(bool(record.get("taken_over")) for record in records)
        if taken:
            print(f"step {global_steps}: {taken} of {len(records)} trajectories taken over from the attempt before")
