"""Where a training beats (heartbeat.py) by the step: at each phase of verl's V1 trainer."""

from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from retool_mcore.state import heartbeat

# By method of verl's trainer (trainer/ppo/v1/trainer_base.py, release 0.9.1): the phase that its call begins.
PHASES = {
    "_load_checkpoint": heartbeat.LOAD,
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
