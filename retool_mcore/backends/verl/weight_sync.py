"""Weight pushes are verified: every tensor in vLLM is, bit by bit, what Megatron exported.

verl's worker gathers the weights under their Hugging Face names and streams them to the vLLM worker on its device, or
to engines elsewhere (backends/verl/host_weights.py). On a push that the trainer wants verified each tensor of the
stream is fingerprinted as it passes (backends/verl/fingerprint.py), and vLLM then compares what its parameters hold
(backends/verl/weight_sync_vllm.py). A tensor that was left out, put elsewhere or cut at another row would otherwise
train in silence, with a rollout policy that is not the trainer's. For an FP8 engine each matrix is fingerprinted in FP8
too, quantised by the function with which verl does it in the engine's worker.
"""

import json
import re
import time
from contextlib import contextmanager

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.kernel.fp8_kernel import scaled_fp8_blockwise

from retool_mcore.backends.verl import push_socket  # noqa: F401  (it registers the sender)
from retool_mcore.backends.verl.fingerprint import FP8, FP8_BLOCK, SCALES, STOPS, Whole, fingerprint
from retool_mcore.backends.verl.gpu_worker import GpuWatchingWorker

_FOUND = re.compile(rf"{STOPS}: [^'\"\n]*")


class PushError(Exception):
    """The rollout engine holds other weights than the trainer exported; training must not go on."""


class VerifyingWorker(GpuWatchingWorker):
    """verl's RL worker that remembers the fingerprints of a push until they are compared."""

    exported: dict[str, Whole] | None = None
    pushed: dict[str, float] = {}
    recording = False

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def record_push(self) -> None:
        """The next push is to be verified."""
        self.exported, self.pushed, self.recording = None, {"tensors": 0, "bytes": 0}, True

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def update_weights(self, global_steps: int = None, mode: str = "auto"):
        recording, self.recording = self.recording, False
        # To engines elsewhere only the first rank sends.
        if not recording or (mode != "naive" and torch.distributed.get_rank() != 0):
            return await super().update_weights(global_steps=global_steps, mode=mode)
        engine = self.actor.engine
        export = engine.get_per_tensor_param
        dtype = getattr(torch, self.config.rollout.dtype)
        seen: list[tuple[str, int, torch.Tensor]] = []

        def recorded(**kwargs):
            weights, adapter = export(**kwargs)
            return self._record(weights, seen, dtype), adapter

        engine.get_per_tensor_param = recorded
        try:
            result = await super().update_weights(global_steps=global_steps, mode=mode)
        finally:
            del engine.get_per_tensor_param
        self.exported = exported_once(seen)
        return result

    def _record(self, weights, seen: list[tuple[str, int, torch.Tensor]], dtype: torch.dtype):
        for name, weight in weights:
            pushed = {name: weight.detach().to(dtype)}
            if self.config.rollout.quantization == "fp8" and weight.dim() == 2:
                matrix, scales = scaled_fp8_blockwise(pushed[name], [FP8_BLOCK, FP8_BLOCK])
                pushed |= {name + FP8: matrix, name + SCALES: scales.repeat_interleave(FP8_BLOCK, 0)}
            seen += [(key, one.numel(), fingerprint(one)) for key, one in pushed.items()]
            self.pushed = {"tensors": self.pushed["tensors"] + 1, "bytes": self.pushed["bytes"] + weight.nbytes}
            yield name, weight

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def verify_push(self) -> dict[str, float]:
        """Compare the engine's tensors with the recorded push; {tensors, bytes, seconds}. Raises PushError."""
        clock = time.perf_counter()
        with refused():
            await self.rollout._execute_method("verify_weights", kwargs=self._message())
        return self.pushed | {"seconds": time.perf_counter() - clock}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def recorded_push(self) -> tuple[dict[str, str], dict[str, float]] | None:
        """Return the push of the rank that sent to engines elsewhere: (arguments of their verify_weights, {tensors,
        bytes})."""
        if self.exported is None:
            return None
        return self._message(), self.pushed

    def _message(self) -> dict[str, str]:
        assert self.exported is not None, "update_weights() exported no tensors: verl's push has changed"
        return {"exported": json.dumps(self.exported), "dtype": self.config.rollout.dtype}


def exported_once(seen: list[tuple[str, int, torch.Tensor]]) -> dict[str, Whole]:
    """The tensors of a push by name, from (name, elements, fingerprint () int64) of each that was exported.

    A tied embedding is on the first and on the last pipeline stage, and mbridge exports both copies under one name.
    Raises PushError when two copies differ.
    """
    values = torch.stack([value for _, _, value in seen]).tolist()  # one wait for the device
    exported: dict[str, Whole] = {}
    for (name, elements, _), value in zip(seen, values, strict=True):
        if exported.setdefault(name, Whole(elements, value)) != Whole(elements, value):
            raise PushError(f"{STOPS}: the trainer's pipeline stages hold different copies of {name}.")
    return exported


@contextmanager
def refused():
    """Turns what an engine says of a push into PushError."""
    try:
        yield
    except Exception as error:
        match = _FOUND.search(str(error))
        if match is None:
            raise
        raise PushError(match[0]) from None
