"""Seconds of one training step, part by part, for the slowest rank.

Each part is work over a rate: FLOPs over what matrix products of these local sizes reach, bytes over a bandwidth. The
pipeline's idle share is (p - 1) / (v m) of the micro-batches' time (Narayanan et al. 2021, arXiv 2104.04473, section
2.2.2). Tensor parallelism with sequence parallelism communicates as Korthikanti et al. 2022 (arXiv 2205.05198, section
4.2.2) say: two all-gathers and two reduce-scatters a layer, forward, and the same backward, where the inputs are
gathered once more for the weight gradients. Constants that only a measurement can give: machine.Constants.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from retool_mcore.planner import flops
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import Machine
from retool_mcore.planner.memory import ADAM, BF16, FP32, optimizer_bytes, stage_parameters, trained_parameters
from retool_mcore.planner.shape import Shape

# Bytes that one element-wise pass over a bf16 tensor moves: read and write.
PASS = 2 * BF16


@dataclass(frozen=True)
class Time:
    """Seconds of one optimizer step. `parts` sum up to `step`."""

    parts: dict[str, float]

    @cached_property
    def step(self) -> float:
        return sum(self.parts.values())


def seconds(shape: Shape, layout: Layout, batch: Batch, machine: Machine) -> Time:
    """Forward, backward and optimizer over the batch on the rank of the last pipeline stage, the busiest."""
    work = _Work.of(shape, layout, batch, machine)
    parts = {
        "products": work.products(passes=2 if shape.lora else 3) + work.adapters(),
        "attention": work.attention(passes=3.5),
        "element-wise": work.elementwise(passes=3),
        "log-probs": work.log_probs(),
        "weight gradients": work.weight_gradients(),
        "recomputation": work.recomputed(),
        "tensor parallel": work.tensor_parallel(gathers=3, scatters=2),
        "context parallel": work.context_parallel(),
        "pipeline": work.pipeline(),
    }
    least = machine.constants.layer_launch_s * 3 * work.layers * work.micro_batches
    busy = sum(parts.values())
    parts["launches"] = max(0.0, least - busy)
    parts["bubble"] = (busy + parts["launches"]) * work.idle
    parts["data parallel"] = work.data_parallel(busy)
    parts["optimizer"] = work.optimizer()
    parts["host"] = machine.constants.step_s
    return Time(parts)


def log_prob_seconds(shape: Shape, layout: Layout, batch: Batch, machine: Machine) -> float:
    """Seconds of one forward pass for the old log-probabilities, with the entropy, as verl computes them before an
    update."""
    work = _Work.of(shape, layout, batch, machine)
    busy = work.products(passes=1) + work.attention(passes=1) + work.elementwise(passes=1) + work.log_probs()
    busy += work.tensor_parallel(gathers=1, scatters=1) + work.context_parallel() / 3 + work.pipeline() / 2
    busy = max(busy, machine.constants.layer_launch_s * work.layers * work.micro_batches)
    return busy * (1 + work.idle) + machine.constants.step_s


@dataclass(frozen=True)
class _Work:
    """One rank of the last stage with its share of the batch; every method returns seconds."""

    shape: Shape
    layout: Layout
    machine: Machine
    tokens: float  # of this context-parallel rank, over all micro-batches
    pairs: int  # of a query and a key, of this data-parallel rank
    micro_batches: int

    @classmethod
    def of(cls, shape: Shape, layout: Layout, batch: Batch, machine: Machine) -> Self:
        share = batch.share(layout.dp)
        return cls(shape, layout, machine, share.tokens / layout.cp, share.pairs, batch.micro_batches(layout).count)

    @property
    def idle(self) -> float:
        """The pipeline's share of the micro-batches' time."""
        return (self.layout.pp - 1) / (self.layout.vpp * self.micro_batches)

    @property
    def layers(self) -> float:
        return self.shape.layers / self.layout.pp

    @property
    def trained(self) -> float:
        return trained_parameters(self.shape, self.layout, self.layout.pp - 1)

    def product(self, rows: float, inner: float, columns: float) -> float:
        """Rate in FLOP/s of a product (rows, inner) x (inner, columns)."""
        constants = self.machine.constants
        smallest = min(rows, inner, columns)
        return self.machine.bf16 * constants.matmul * smallest / (smallest + constants.matmul_half)

    def products(self, passes: float) -> float:
        """All products with weights: forward is one pass, backward two."""
        shape, tp = self.shape, self.layout.tp
        rows = self.tokens / self.micro_batches
        attention = shape.q_width + 2 * shape.kv_width
        layer = sum(
            2.0 * self.tokens * inner * columns / self.product(rows, inner, columns)
            for inner, columns in (
                (shape.hidden, attention / tp),
                (shape.q_width / tp, shape.hidden),
                (shape.hidden, 2 * shape.ffn / tp * (shape.active or 1)),
                (shape.ffn / tp * (shape.active or 1), shape.hidden),
            )
        )
        columns = shape.vocab / tp
        output = 2.0 * self.tokens * shape.hidden * columns / self.product(rows, shape.hidden, columns)
        return passes * (self.layers * layer + output)

    def adapters(self) -> float:
        """Forward and backward of LoRA's two products, as narrow as their rank; none of frozen weights' gradients."""
        rows = self.tokens / self.micro_batches
        return 6.0 * self.tokens * self.trained / self.product(rows, self.shape.lora, rows) if self.shape.lora else 0.0

    def attention(self, passes: float) -> float:
        """The backward makes five products of the forward's two: 2.5 passes; model FLOPs count two."""
        forward = flops.attention_of_pairs(self.shape, self.pairs) / self.layout.pp
        rate = self.machine.bf16 * self.machine.constants.attention
        return passes * forward / (self.layout.tp * self.layout.cp) / rate

    def elementwise(self, passes: float) -> float:
        """Norms, residuals, rotary embedding and SwiGLU; backward moves twice what forward does."""
        shape, layout = self.shape, self.layout
        sharded = layout.tp if layout.shards_sequence else 1
        norms = (2 + 2 * 1.5) * PASS * shape.hidden / sharded
        rotary = (2 if layout.fused_rope else 8) * PASS * (shape.q_width + shape.kv_width) / layout.tp
        swiglu = (1.5 if layout.fused_swiglu else 3.5) * PASS * shape.ffn * (shape.active or 1) / layout.tp
        return passes * self.layers * self.tokens * (norms + rotary + swiglu) / self.hbm

    @property
    def hbm(self) -> float:
        return self.machine.hbm * self.machine.constants.elementwise

    def log_probs(self) -> float:
        """Passes over the logits, forward and backward; the fused kernel computes the product once more."""
        columns = self.shape.vocab / self.layout.tp
        if self.layout.fused_log_probs == "in_place":
            return (3 * BF16 if self.layout.half_logits else 6 * FP32) * self.tokens * columns / self.hbm
        if self.layout.fused_log_probs:
            rows = self.tokens / self.micro_batches
            return 2.0 * self.tokens * self.shape.hidden * columns / self.product(rows, self.shape.hidden, columns)
        return 8.5 * 2 * FP32 * self.tokens * columns / self.hbm

    def weight_gradients(self) -> float:
        """Without fusion each micro-batch writes bf16 gradients and adds them to the float32 buffer."""
        bytes_each = 2 * FP32 if self.layout.fused_wgrad else 2 * BF16 + 2 * FP32
        return self.micro_batches * bytes_each * self.trained / self.hbm

    def recomputed(self) -> float:
        shape, layout = self.shape, self.layout
        match layout.recompute:
            case "selective":
                return self.attention(passes=1)
            case "mlp":
                part = 3 * shape.ffn * shape.hidden / shape.layer_matrices
                return part * self._layers_forward()
            case "full":
                again = self._layers_forward() + self.attention(passes=1) + self.elementwise(passes=1)
                return again + self.tensor_parallel(gathers=1, scatters=1)
        return 0.0

    def _layers_forward(self) -> float:
        whole = self.layers * self.shape.layer_matrices
        output = self.shape.vocab * self.shape.hidden
        return self.products(passes=1) * whole / (whole + output)

    def bandwidth(self, first: int, size: int) -> float:
        """Bytes/s of a collective over `size` ranks that are `first` apart (Megatron places tp, cp, dp, pp)."""
        constants = self.machine.constants
        inside = first * size <= self.machine.gpus_per_node
        return self.machine.nvlink * constants.nvlink if inside else self.machine.network * constants.network

    def tensor_parallel(self, gathers: float, scatters: float) -> float:
        """A layer's all-gathers and reduce-scatters, each twice (attention and MLP); an all-reduce is both."""
        tp = self.layout.tp
        if tp == 1:
            return 0.0
        constants = self.machine.constants
        moved = BF16 * self.shape.hidden * self.tokens * (tp - 1) / tp
        count = 2 * (gathers + scatters)
        waits = self.micro_batches * constants.latency_s
        return self.layers * count * (moved / self.bandwidth(1, tp) + waits)

    def context_parallel(self) -> float:
        """Keys and values round the ring, forward, and with their gradients backward; half hides behind attention."""
        cp = self.layout.cp
        if cp == 1:
            return 0.0
        kv_ranks = min(self.layout.tp, self.shape.kv_heads)
        moved = 3 * 2 * BF16 * self.shape.kv_width / kv_ranks * self.tokens * (cp - 1)
        waits = 3 * (cp - 1) * self.micro_batches * self.machine.constants.latency_s
        return self.layers * (0.5 * moved / self.bandwidth(self.layout.tp, cp) + waits)

    def pipeline(self) -> float:
        """Activations forward and their gradients back over one boundary, for each chunk of layers."""
        layout = self.layout
        if layout.pp == 1:
            return 0.0
        sharded = layout.tp if layout.shards_sequence else 1
        moved = 2 * layout.vpp * BF16 * self.shape.hidden * self.tokens / sharded
        waits = 2 * layout.vpp * self.micro_batches * self.machine.constants.latency_s
        return moved / self.bandwidth(layout.tp * layout.cp * layout.dp, layout.pp) + waits

    def data_parallel(self, busy: float) -> float:
        """Reduce-scatter of float32 gradients and all-gather of bf16 weights, which `overlap` hides but for a tenth."""
        size = self.layout.dp * self.layout.cp
        if size == 1:
            return 0.0
        moved = (FP32 + BF16) * self.trained * (size - 1) / size
        whole = moved / self.bandwidth(self.layout.tp, size)
        return max(0.1 * whole, whole - busy) if self.layout.overlap else whole

    def optimizer(self) -> float:
        """Adam reads and writes three float32 states, reads the gradient, writes bf16; the norm reads it once more.

        What is offloaded comes over PCIe before the update and goes back after it.
        """
        parameters = stage_parameters(self.shape, self.layout, self.layout.pp - 1)
        owned = optimizer_bytes(self.shape, self.layout, self.trained) / ADAM
        machine = self.machine
        adam = owned * (6 * FP32 + 2 * FP32 + BF16) / (machine.hbm * machine.constants.adam)
        zeroed = self.trained * FP32 / (machine.hbm * machine.constants.adam)
        moved = 2 * 3 * FP32 * owned * self.layout.optimizer_offload + 2 * BF16 * parameters * self.layout.param_offload
        return adam + zeroed + moved / machine.pcie
