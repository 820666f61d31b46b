"""The settings that the algorithm reads from the configuration, independent of how the engines are laid out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import OmegaConf

from retool_mcore.recipes.mini_batches import Cut


@dataclass(frozen=True)
class Settings:
    """Settings of one run of RL; counts of prompts unless something else is named."""

    batch: int  # a step
    mini_batch: int  # an optimizer step
    n: int  # trajectories a prompt
    steps: int
    seed: int
    staleness: int = 0  # steps by which rollouts may run ahead; 0: each step takes what it asked for
    updates: int = 1  # a step, each on groups of its own
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the section `recipe`
    correction: Mapping[str, Any] = field(default_factory=dict)  # rollout_is, rollout_rs and their thresholds
    log_probs_every: int = 1  # steps between two passes for the trainer's own log-probabilities
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, top_p, top_k, ... of the rollouts
    validation_sampling: Mapping[str, Any] = field(default_factory=dict)
    validation_n: int = 1
    evaluation: Mapping[str, Any] | None = None  # samples and sampling of the evaluation set; None: not validated on
    validate_every: int = -1  # steps; below 1: never
    validate_first: bool = False  # also before the first step
    save_every: int = -1
    verify_every: int = 1  # pushes from one that is verified to the next; 0: the first alone
    stop_after_worse: int | None = None  # validations in a row
    sandbox_errors: float = 1.0  # share of trajectories that the sandbox may lose

    def cut(self, ranks: int) -> Cut:
        """Return how the engines of `ranks` data-parallel ranks cut the batch of one update."""
        rows = self.batch // self.updates * self.n
        return Cut(rows, min(self.mini_batch * self.n, rows), ranks)

    @classmethod
    def of(cls, verl) -> "Settings":
        """Read the section that configures verl's classes (backends/verl/settings.py), so that the loop and
        the engines can never read two values of one thing."""
        mode, rollout, retool = verl.trainer.v1.trainer_mode, verl.actor_rollout_ref.rollout, verl.retool
        ahead = verl.trainer.v1.get(mode, {})
        common = {"repetition_penalty": 1.0, "logprobs": rollout.calculate_log_probs}
        sampling, held_back = (
            {name: section[name] for name in ("temperature", "top_p", "top_k")} | common
            for section in (rollout, rollout.val_kwargs)
        )
        return cls(
            batch=verl.data.train_batch_size,
            mini_batch=verl.actor_rollout_ref.actor.ppo_mini_batch_size,
            n=rollout.n,
            steps=verl.trainer.total_training_steps,
            seed=verl.actor_rollout_ref.actor.data_loader_seed,
            staleness=0 if mode == "sync" else int(ahead.get("num_warmup_batches", 0)),
            updates=ahead.get("parameter_sync_step", 1),
            recipe=OmegaConf.to_container(retool.recipe, resolve=True),
            correction=OmegaConf.to_container(verl.algorithm.rollout_correction, resolve=True),
            log_probs_every=retool.log_probs_every,
            sampling=sampling,
            validation_sampling=held_back,
            validation_n=rollout.val_kwargs.n,
            evaluation=retool.evaluation and OmegaConf.to_container(retool.evaluation, resolve=True),
            validate_every=verl.trainer.test_freq,
            validate_first=verl.trainer.val_before_train,
            save_every=verl.trainer.save_freq,
            verify_every=retool.verify_push_every,
            stop_after_worse=retool.stop_after_worse,
            sandbox_errors=retool.sandbox_errors,
        )
