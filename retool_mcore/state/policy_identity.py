"""Which policy a step's rollouts are of, so that a restart takes over what that very policy had finished of the step.

Two attempts are at the same policy only if it came about alike: the initial model and, for every update since, its
settings and the trajectories it was trained on. A chain of digests says so; each checkpoint has its link. The steps
since the last checkpoint, run again on the same trajectories, give the same chain, whatever noise of floating point
they add. So what is on the disk (rollout/unfinished.py) is kept until a checkpoint covers it.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from omegaconf import OmegaConf

from retool_mcore.state import checkpoints
from retool_mcore.state.identity import digest, policy_files

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
        episode = OmegaConf.load(config.retool.episode)
        episode.sandbox = episode.sandbox.kind  # a machine of another size has another number of interpreters
        self.settings = digest(actor, episode, [OmegaConf.select(config, name) for name in _SETTINGS])
        self.one_update = config.actor_rollout_ref.actor.ppo_mini_batch_size >= config.data.train_batch_size
        link = checkpoints.folder_of(Path(config.retool.stage_dir) / "checkpoints", step) / IDENTITY
        if step == 0:
            self.link = policy_files(Path(config.actor_rollout_ref.model.path))
        else:
            self.link = link.read_text() if link.is_file() else uuid.uuid4().hex

    @property
    def policy(self) -> str:
        """Return the identity of the trajectories that this policy samples in these settings."""
        return digest(self.link, self.settings)[:16]

    def advance(self, records: Sequence[Mapping]) -> None:
        """Advance to the policy after an update on `records` (metrics/records.py); none: the data are unknown (a
        critic's)."""
        rows = [_trained_on(record) for record in sorted(records, key=lambda record: record["place"])]
        if self.one_update:
            rows.sort()  # their order is noise; of several mini-batches it says which trajectory is in which
        self.link = digest(self.link, self.settings, rows or uuid.uuid4().hex)


def _trained_on(record: Mapping) -> str:
    """Return the digest of what an update learns from a trajectory. Its log-probabilities are left out, they are
    noise."""
    sha = hashlib.sha256(json.dumps([record["index"], record["sample"], record["score"]]).encode())
    for name in ("prompt_ids", "response_ids", "response_mask"):
        sha.update(np.asarray(record[name], np.int32).tobytes())
    return sha.hexdigest()
