"""Which policy a step's rollouts are of, so that a restart takes over what that very policy had finished of the step.

Two attempts are at the same policy only if it came about alike: the initial model and, for every update since, its
settings and the trajectories it was trained on. A chain of digests says so; each checkpoint has its link. The steps
since the last checkpoint, run again on the same trajectories, give the same chain, whatever noise of floating point
they add. So what lies on the disk (rollout/unfinished.py) is kept until a checkpoint covers it.

Only of the synchronous trainer. Where rollouts run ahead, verl saves TransferQueue with every checkpoint.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf
from verl.utils import tensordict_utils

from retool_mcore.backends.verl.agent_loop_worker import COLUMN, KeepingManager
from retool_mcore.files import write_atomically
from retool_mcore.rollout import unfinished
from retool_mcore.state import checkpoints
from retool_mcore.state.identity import digest as _digest
from retool_mcore.state.identity import policy_files

IDENTITY = "policy_identity"  # in a checkpoint
# What shapes a trajectory or an update. How the work is laid out on devices, saved and watched adds noise alone, and
# may be another after a restart.
_ROLLOUT = ("n", "temperature", "top_p", "top_k", "max_model_len", "response_length", "dtype", "engine_kwargs", "seed")
_SETTINGS = [f"actor_rollout_ref.rollout.{name}" for name in _ROLLOUT]
_SETTINGS += [f"actor_rollout_ref.actor.megatron.{name}" for name in ("dtype", "seed", "override_mcore_model_config")]
_SETTINGS += ["actor_rollout_ref.model", "algorithm", "critic.optim", "data.train_batch_size", "retool.recipe"]
_LAYOUT = re.compile("megatron|checkpoint|profiler|dynamic_bsz|per_gpu|fused|chunk")  # keys of the actor


class PolicyIdentity:
    """The chain of the policy that an attempt starts with, after update `step` (`config`: verl's, with `retool`).

    Where the checkpoint has no link, a chain of its own begins, which takes nothing over.
    """

    def __init__(self, config, step: int):
        actor = {name: value for name, value in config.actor_rollout_ref.actor.items() if not _LAYOUT.search(name)}
        (loop,) = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
        loop.sandbox = loop.sandbox.kind  # a machine of another size has another number of interpreters
        self.settings = _digest(actor, loop, [OmegaConf.select(config, name) for name in _SETTINGS])
        self.one_update = config.actor_rollout_ref.actor.ppo_mini_batch_size >= config.data.train_batch_size
        link = checkpoints.folder_of(Path(config.retool.stage_dir) / "checkpoints", step) / IDENTITY
        if step == 0:
            self.link = policy_files(Path(config.actor_rollout_ref.model.path))
        else:
            self.link = link.read_text() if link.is_file() else uuid.uuid4().hex

    @property
    def policy(self) -> str:
        """Of the trajectories that this policy samples in these settings."""
        return _digest(self.link, self.settings)[:16]

    def advance(self, records: Sequence[Mapping]) -> None:
        """To the policy after an update on `records` (metrics/records.py); none: on what is not known (a critic's)."""
        rows = [_trained_on(record) for record in sorted(records, key=lambda record: record["place"])]
        if self.one_update:
            rows.sort()  # their order is noise; of several mini-batches it says which trajectory is in which
        self.link = _digest(self.link, self.settings, rows or uuid.uuid4().hex)


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


def _trained_on(record: Mapping) -> str:
    """Of what an update learns from a trajectory. Its log-probabilities are left out, they are noise."""
    found = hashlib.sha256(json.dumps([record["index"], record["sample"], record["score"]]).encode())
    for name in ("prompt_ids", "response_ids", "response_mask"):
        found.update(np.asarray(record[name], np.int32).tobytes())
    return found.hexdigest()
