"""verl's trainers whose rollouts run ahead of the training: on its devices (`pipeline=partial`), or on devices of their
own (`pipeline=one_step_off | async`).

Between two steps the weights go to the rollout engines; generation stops for that, and unfinished trajectories go on
with the new weights (verl's partial rollout), each token with the log-probability of the policy that wrote it.
"""

import logging
import time

import ray
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from retool_mcore.backends.verl.trainer import PolicyWorker, RetoolTrainerMixin
from retool_mcore.backends.verl.weight_sync import refused

# It calls logger.info(..., flush=True), which is a TypeError wherever its level lets the message pass (release 0.9.1).
logging.getLogger(PPOTrainerSeparateAsync.__module__).setLevel(logging.WARNING)


class PartialTrainer(RetoolTrainerMixin, PPOTrainerColocateAsync):
    """A step ends when its batch of groups is whole; up to `pipeline.staleness` batches stay in progress over it."""


class SeparateWorker(PolicyWorker, DetachActorWorker):
    """verl's worker that can put back the weights of the step's beginning, for the old log-probabilities."""


class SeparateTrainer(RetoolTrainerMixin, PPOTrainerSeparateAsync):
    """Rollouts up to `pipeline.staleness` steps ahead."""

    def _init_resource_pool_mgr(self):
        super()._init_resource_pool_mgr()
        if Role.Actor in self.mapping:
            self.role_worker_mapping[Role.Actor] = ray.remote(SeparateWorker)

    def _verify_push(self) -> dict[str, float]:
        clock = time.perf_counter()
        message, told = self.actor_rollout_wg.recorded_push()[0]
        servers = [replica.server_handle for replica in self.standalone_server_manager.get_replicas()]
        with refused():
            ray.get([server.collective_rpc.remote("verify_weights", kwargs=message) for server in servers])
        return told | {"seconds": time.perf_counter() - clock}
