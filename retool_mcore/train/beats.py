"""Where a training beats (heartbeat.py): at each phase of verl's V1 trainer, at every micro-batch of its engines."""

import os
from collections.abc import Iterator

from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils

from retool_mcore import heartbeat

# By method of verl's trainer (trainer/ppo/v1/trainer_base.py, release 0.9.1): the phase that its call begins.
PHASES = {
    "on_init_end": heartbeat.PUSH,
    "on_sample_begin": heartbeat.GENERATION,
    "on_sample_end": "rows",
    "_compute_old_log_prob": "log-probabilities",
    "_compute_ref_log_prob": "reference log-probabilities",
    "_compute_values": "values",
    "_compute_advantage": "advantages",
    "_update_critic": "critic update",
    "_update_actor": heartbeat.UPDATE,
    "_save_checkpoint": heartbeat.SAVE,
    "on_step_end": heartbeat.PUSH,
    "on_validate_begin": heartbeat.VALIDATION,
    "_compute_metrics": "metrics",
}
assert not (gone := [name for name in PHASES if not hasattr(PPOTrainer, name)]), f"verl's trainer has no {gone}"


class Phases:
    """Stands before one of verl's trainers and says which phase begins."""


def _beginning(name: str, phase: str):
    def method(self, *args, **kwargs):
        heartbeat.beat(heartbeat.TRAINER, phase)
        return getattr(super(Phases, self), name)(*args, **kwargs)

    return method


for _name, _phase in PHASES.items():
    setattr(Phases, _name, _beginning(_name, _phase))


def optimizer_steps(trainer: PPOTrainer) -> int:
    """Of one update of the policy, which the engines run one after the other; 1 where nothing says how many."""
    actor = trainer.config.actor_rollout_ref.actor
    if not actor.get("ppo_mini_batch_size"):
        return 1
    prompts = trainer.config.data.train_batch_size // trainer.parameter_sync_step
    return -(-prompts // actor.ppo_mini_batch_size) * actor.ppo_epochs


class MicroBatches:
    """Counts one engine's micro-batches; rank 0 tells them."""

    def __init__(self) -> None:
        self.updates = self.done = 0

    def begin(self, forward_only: bool) -> None:
        self.done = 0
        self.updates += not forward_only

    def taken(self, batches: Iterator) -> Iterator:
        """One of the micro-batches: those before it are done."""
        batch = next(batches)
        if os.environ.get("RANK", "0") == "0":
            total = tensordict_utils.get_non_tensor_data(batch, key="num_micro_batch", default=0)
            heartbeat.beat(heartbeat.RANK, "micro-batches", self.done, total, updates=self.updates)
        self.done += 1
        yield batch
