"""PPO's critic: verl's value model on Megatron, in the processes of the policy.

What verl 0.9.1 does itself: a value head in the place of the output layer, values, generalised advantages, the clipped
value loss, `critic/` next to `actor/` in every checkpoint. This module adds what verl leaves open.
"""

from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.tensordict_utils import assign_non_tensor
from verl.workers.engine_workers import TrainingWorker


class NonEmptyLoss:
    """`loss(model_output, data, dp_group)`; a mini-batch whose samples are all left out has loss 0 instead of 0/0."""

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, model_output, data, dp_group=None):
        if data["batch_num_tokens"] == 0:
            assign_non_tensor(data, batch_num_tokens=1)
        return self.loss(model_output=model_output, data=data, dp_group=dp_group)


class CriticWorker(TrainingWorker):
    """The worker that trains the critic."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_loss_fn(self, loss_fn):
        super().set_loss_fn(NonEmptyLoss(loss_fn))
