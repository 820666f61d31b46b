"""The processes that train: verl's Megatron workers, audited, verified, fed by backends/verl/wire.py."""

from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.single_controller.ray import RayWorkerGroup

from retool_mcore.backends.verl.audited_loss import AuditingWorker
from retool_mcore.backends.verl.critic import CriticWorker
from retool_mcore.backends.verl.weight_sync import VerifyingWorker
from retool_mcore.backends.verl.wire import whole
from retool_mcore.ports import meeting_range

_ACTOR, _REFERENCE, _CRITIC = (make_nd_compute_dataproto_dispatch_fn(mesh_name=m) for m in ("actor", "ref", "train"))


class PolicyWorker(VerifyingWorker, AuditingWorker, DetachActorWorker):
    """The policy, perhaps its reference and its rollout engine: the loss audited, the push verified. The weights of a
    step's beginning can be put back for the old log-probabilities."""

    @register(dispatch_mode=_ACTOR)
    def compute_log_prob(self, data: TensorDict) -> TensorDict:
        return super().compute_log_prob(whole(data))

    @register(dispatch_mode=_REFERENCE)
    def compute_ref_log_prob(self, data: TensorDict) -> TensorDict:
        return super().compute_ref_log_prob(whole(data))

    @register(dispatch_mode=_ACTOR)
    def update_actor(self, data: TensorDict) -> TensorDict:
        return super().update_actor(whole(data))


class ValueWorker(CriticWorker):
    """The critic, in the processes of the policy."""

    @register(dispatch_mode=_CRITIC, blocking=False)
    def infer_batch(self, data: TensorDict) -> TensorDict:
        return super().infer_batch(whole(data))

    @register(dispatch_mode=_CRITIC, blocking=False)
    def train_mini_batch(self, data: TensorDict) -> TensorDict:
        return super().train_mini_batch(whole(data))


def worker_group(pool, workers, device: str) -> RayWorkerGroup:
    """verl's group, whose ranks meet at a port below the ephemeral range: verl would look for a free one, and on a busy
    host another process had it before rank 0 listened there."""
    return RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=workers, device_name=device, master_port_range=meeting_range()
    )
