"""The optimizer's step with a look at its gradient norm: an update that would break the weights is left out.

Stock Megatron looks for a NaN only with fp16's loss scaling; in bfloat16 and float32 Adam writes it into the weights.
The norm is known before they move, between `ChainedOptimizer.get_grad_norm` and `step_with_ready_grads`
(megatron/core/optimizer/optimizer.py, 0.16 to 0.18). An update that is left out changes neither weights nor Adam's
moments and step counts; the learning rate's schedule counts the trainer's steps and goes on.
"""
# The mix-ins use attributes of verl's classes, which they are mixed into.
# mypy: disable-error-code="attr-defined"

import math
from collections import deque

import torch
from megatron.core.optimizer import ChainedOptimizer
from verl.utils.device import get_device_id
from verl.utils.metric import AggregationType, Metric

from retool_mcore.state.alarms import norm_ratio


class GuardedUpdate:
    """Update guard of verl's Megatron engines; `_switch` reads what alarms.engine_switches returns.

    Metrics of an update: `broken_updates` and `skipped_updates`, 0 or 1, which verl averages over the step's updates,
    and `norm_ratio_max`, the norm divided by the median of the norms before it in this attempt.
    """

    _norms: deque | None = None

    def optimizer_step(self):
        if not self._switch("watch_updates"):
            return super().optimizer_step()
        assert isinstance(self.optimizer, ChainedOptimizer), "Megatron builds another optimizer than it did"
        optimizer, norms = self.optimizer, []
        measure, apply = optimizer.get_grad_norm, optimizer.step_with_ready_grads

        def measured():
            norms.append(measure())
            return norms[-1]

        def guarded():
            return True if self._judge(float(norms[-1])) else apply()

        optimizer.get_grad_norm, optimizer.step_with_ready_grads = measured, guarded
        try:
            return super().optimizer_step()
        finally:
            del optimizer.get_grad_norm, optimizer.step_with_ready_grads

    def train_batch(self, data, loss_function):
        outputs = super().train_batch(data, loss_function)
        if self._switch("watch_updates") and self.is_mp_src_rank_with_outputs():
            outputs["metrics"] |= {name: Metric(AggregationType.MAX, v) for name, v in self._found.items()}
        return outputs

    def _judge(self, norm: float) -> bool:
        """Whether this update is left out: by all ranks, when one of them wants it."""
        self._norms = deque(maxlen=self._switch("spike_window")) if self._norms is None else self._norms
        broken = not math.isfinite(norm)
        ratio = 0.0 if broken else norm_ratio(norm, self._norms)
        if not broken:
            self._norms.append(norm)
        unwanted = (broken and self._switch("skip_broken")) or (
            self._switch("skip_spikes") and ratio > self._switch("spike_factor")
        )
        flags = torch.tensor([unwanted, broken], dtype=torch.int32, device=get_device_id())
        torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX)
        skipped, broken = flags.tolist()
        self._found = {"broken_updates": broken, "skipped_updates": skipped, "norm_ratio_max": ratio}
        return bool(skipped)
