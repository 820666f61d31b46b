"""Tensor-parallel communication beside the matrix products it belongs to: Transformer Engine's user buffers.

With sequence parallelism Megatron gathers a layer's input over the tensor-parallel ranks before a product and scatters
the output behind the next one, and the products wait. Transformer Engine can cut products and messages into pieces that
run beside each other (`tp_comm_overlap`), but only for one number of tokens, fixed when it starts; a micro-batch of
packed trajectories has any number. So a micro-batch that is nearly full is padded to that number, by verl's own
`pad_to_length`, and any other runs without the overlap.

verl 0.9.1 knows neither: the overlap is on where `parallel.megatron.override_mcore_model_config.tp_overlap` is true
(backends/megatron/engine.py). Adapted places: Transformer Engine 2.16.1, pytorch/module/base.py (`initialize_ub`)
and the `ub_*` switches of linear.py and layernorm_linear.py.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence

import torch
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import McoreEngineConfig

SETTINGS = {"tp_comm_overlap": True, "tp_comm_overlap_rs_dgrad": True}  # Megatron's, in override_transformer_config
# Copy engines move the pieces, no multiprocessor does. Transformer Engine's default for these four is kernels.
METHODS = {name: {"method": "ring_exchange"} for name in ("proj_fprop", "fc2_fprop", "qkv_dgrad", "fc1_dgrad")}
SWITCHES = (
    "ub_overlap_ag_fprop",
    "ub_overlap_rs_fprop",
    "ub_overlap_ag_dgrad",
    "ub_overlap_rs_dgrad",
    "ub_bulk_dgrad",
    "ub_bulk_wgrad",
)
FULL = 0.95  # of the slots: with less, padding costs more than the overlap gains

_started: tuple[int, int] | None = None  # Transformer Engine holds one set of buffers a process


class Overlap:
    """When an engine's micro-batches run with the overlap."""

    def __init__(self, config: McoreEngineConfig, *, align: int, hidden: int):
        """`align`: verl pads each packed sequence to a multiple of so many tokens; `hidden`: the model's width. Nothing
        is allocated before `start`."""
        self.config, self.align, self.hidden, self.tokens = config, align, hidden, 0
        self.padded = None  # the engine's configuration for micro-batches that are padded to `tokens`
        self.layers: dict[torch.nn.Module, list[tuple[torch.nn.Module, dict[str, bool]]]] = {}  # of a pipeline chunk
        self.on: dict[torch.nn.Module, bool] = {}

    def start(self, limit: int | None) -> None:
        """Make the buffers for micro-batches of at most `limit` tokens a context-parallel rank, the first time; all
        ranks together. None: nothing says how long a micro-batch may be, so none is overlapped."""
        if self.tokens or not limit:
            return
        tokens = limit * self.config.context_parallel_size
        tokens += -tokens % self.align
        shape = (tokens // self.config.context_parallel_size, self.hidden)
        _start(shape, self.config.tensor_model_parallel_size, PrecisionType.to_dtype(self.config.dtype))
        self.padded = dataclasses.replace(self.config, pad_to_length=True, pad_to_length_bucket=tokens)
        self.tokens = tokens

    def fits(self, lengths: Sequence[int]) -> bool:
        """Whether a micro-batch of sequences of `lengths` tokens nearly fills the slots."""
        taken = sum(length + -length % self.align for length in lengths)
        return FULL * self.tokens <= taken <= self.tokens

    @contextlib.contextmanager
    def chosen(self, engine, model, lengths: Sequence[int]) -> Iterator[None]:
        """`engine`'s forward pass of a micro-batch through `model`; the backward pass follows the forward's choice."""
        fits = self.fits(lengths)
        self._switch(model, fits)
        if fits:
            engine.engine_config = self.padded
        try:
            yield
        finally:
            engine.engine_config = self.config

    def _switch(self, model, on: bool) -> None:
        if model not in self.layers:
            found = [module for module in model.modules() if getattr(module, "ub_name", None)]
            self.layers[model] = [(module, {name: getattr(module, name) for name in SWITCHES}) for module in found]
        if self.on.get(model) != on:
            for module, built in self.layers[model]:
                for name, value in built.items():
                    setattr(module, name, on and value)
            self.on[model] = on


def _start(shape: tuple[int, int], tp: int, dtype: torch.dtype) -> None:
    global _started
    if _started == shape:
        return
    if _started:
        raise RuntimeError(f"tp_overlap was started for {_started} (tokens, hidden) and cannot serve {shape} too.")
    # CUDA IPC instead of NVLink multicast, which containers and virtual machines often forbid.
    os.environ.setdefault("UB_SKIPMC", "1")
    from transformer_engine.pytorch.module import base

    base.initialize_ub(
        shape=list(shape),
        tp_size=tp,
        dtype=dtype,
        quantization_modes=[base.UserBufferQuantizationMode.NONE],
        ub_cfgs=METHODS,
        bootstrap_backend="nccl",
    )
    _started = shape
