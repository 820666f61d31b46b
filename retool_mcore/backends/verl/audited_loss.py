"""The mask audit in the trainer's workers: the gradient that the loss really gives to every token's log-probability.

What the trainer process can check are columns (metrics/audit.py). Between them and the loss are Ray's object store, the
mini-batch loader, micro-batches, padding and the shift by one token; so here, where verl calls its loss, the loss is
differentiated with respect to the log-probabilities that it was given, and a token's weight is that derivative. The
graph between the two is elementwise arithmetic on one number a token: nothing next to the model's own backward pass.
"""

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.metric import AggregationType, Metric

from retool_mcore.backends.megatron.token_positions import token_positions
from retool_mcore.backends.verl.gpu_worker import GpuWatchingWorker
from retool_mcore.metrics.audit import INTERPRETER, MaskAuditError

# The column that says what each response token is (metrics/audit.py), (samples, tokens) int8.
SPAN_KIND = "span_kind"


class AuditedLoss:
    """`loss(model_output, data, dp_group)` of verl's engines, with the audit of its gradient. Raises MaskAuditError."""

    def __init__(self, loss):
        self.loss = loss

    def __call__(self, model_output, data, dp_group=None):
        inputs = {name: model_output.get(name) for name in ("log_probs", "entropy")}
        inputs = {name: _values(tensor) for name, tensor in inputs.items() if tensor is not None}
        loss, metrics = self.loss(model_output={**model_output, **inputs}, data=data, dp_group=dp_group)
        inputs = [tensor for tensor in inputs.values() if tensor.requires_grad]
        if loss.requires_grad and inputs:
            gradients = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
            metrics = metrics | _check(data, [gradient for gradient in gradients if gradient is not None])
        return loss, metrics


class AuditingWorker(GpuWatchingWorker):
    """The RL worker whose actor's loss is audited."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        from retool_mcore.backends.megatron import engine  # in the workers only: it imports Megatron's layers

        engine.register_engines()
        super().init_model()
        if "actor" in self.role:
            self.actor.set_loss_fn(AuditedLoss(self.loss_fn))


def _check(data, gradients: list[torch.Tensor]) -> dict[str, Metric]:
    """Counts of one micro-batch.

    A gradient that is not finite says nothing about the mask, since a NaN stays one when it is multiplied by 0: such
    tokens are named and counted, and not judged.
    """
    if SPAN_KIND not in data:
        raise RuntimeError(f"The batch has no column {SPAN_KIND}, so its loss cannot be audited.")
    together = torch.stack(gradients)
    weighted = ((together != 0) & together.isfinite()).any(0)
    kind, position = data[SPAN_KIND].values(), token_positions(data)
    broken = ~together.isfinite().all(0)[position]
    counted = weighted[position]
    leaked = counted & (kind == INTERPRETER)
    in_response = torch.zeros_like(weighted).index_fill_(0, position, True)
    counts = [leaked.sum(), (weighted & ~in_response).sum(), counted.sum(), (kind == INTERPRETER).sum(), broken.sum()]
    leaks, in_prompts, with_gradient, interpreter, not_finite = torch.stack(counts).tolist()
    if leaks:
        raise _error(data, int(leaked.nonzero()[0]), "an interpreter token receives a gradient")
    if in_prompts:
        raise MaskAuditError("a prompt token receives a gradient", "of this micro-batch", 0, "in the loss")
    if not_finite:
        key, token = _place(data, int(broken.nonzero()[0]))
        print(
            f"The loss has no finite gradient at {not_finite} tokens of a micro-batch, first in trajectory {key}, "
            f"response token {token}: look at its reward and log-probabilities, and at the weights of this step.",
            flush=True,
        )
    # Means over the step's mini-batches, as verl reduces them.
    values = {"gradient_tokens": with_gradient, "gradient_interpreter_tokens": leaks, "interpreter_tokens": interpreter}
    values["not_finite_tokens"] = not_finite
    return {f"audit/{name}": Metric(AggregationType.SUM, value) for name, value in values.items()}


def _error(data, position: int, what: str) -> MaskAuditError:
    return MaskAuditError(what, *_place(data, position), "in the loss")


def _place(data, position: int) -> tuple[str, int]:
    """(the trajectory's name, its response token) at a position of all response tokens of the micro-batch."""
    starts = data["responses"].offsets()
    row = int(torch.searchsorted(starts, torch.tensor(position, device=starts.device), right=True)) - 1
    values = [data[name][row] for name in ("uid", "session_id") if name in data]
    names = [str(v.item() if isinstance(v, torch.Tensor) else getattr(v, "data", v)) for v in values]
    key = "_".join(names) or f"row {row} of a micro-batch"
    return key, position - int(starts[row])


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.values() if tensor.is_nested else tensor
