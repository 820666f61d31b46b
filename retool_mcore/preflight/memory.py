"""Do an update and the models next to vLLM fit the GPUs, and does the rest of a run fit the nodes? By the planner's
arithmetic (retool_mcore/planner/memory.py)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.errors import UserError
from retool_mcore.planner import memory as update
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.memory import ADAM, BF16, FP32, GIB, stage_parameters, trained_parameters
from retool_mcore.planner.run import shape_of
from retool_mcore.planner.settings import layout_of
from retool_mcore.planner.shape import Shape, known
from retool_mcore.preflight import machine

# A job is refused only when the prediction is so far beyond the GPU that its error does not matter.
TOLERANCE = 0.07
PIECES = 8  # sequences that fill a micro-batch
# One token of a trajectory: ids, mask and up to nine float32 columns in the loop's process, what Ray's store passes on.
TOKEN_BYTES = 72
OFFLOAD = (
    "set parallel.megatron.param_offload=true and parallel.megatron.optimizer_offload=true, or spread the models over "
    "more GPUs"
)


def check_update(
    parallel: DictConfig,
    folder: Path,
    *,
    dp: int,
    gpu_bytes: int,
    critic: bool = False,
    reference: bool = False,
    engine: bool = False,
    config: DictConfig | None = None,
) -> float | None:
    """Refuse a layout whose update needs more than `gpu_bytes` on a GPU; returns the bytes that it should need.

    A micro-batch is taken to be full. None: a model whose parts the planner does not know.

    Args:
        folder: the policy's.
        critic: PPO's, which has the policy's layout and GPUs, unless parallel.megatron moves both away.
        reference: the starting policy for the KL term, whose weights are there too.
        engine: vLLM shares the GPUs and is given its share of them while the models stay.
        config: the stage's, whose adapters (model.lora) alone are trained; None: all weights are.
    """
    shape, layout = known(folder), layout_of(parallel, dp=dp)
    shape = shape.adapted(config) if shape and config else shape
    piece = layout.micro_batch_tokens * layout.cp // PIECES
    if shape is None or piece < 1:
        return None
    micro_batches = 2 * layout.pp * layout.vpp
    held = update.memory(shape, layout, Batch((piece,) * (PIECES * micro_batches * dp)))
    stays = {name: update.staying(parts, layout) for name, parts in update.models(shape, layout, held.stage).items()}
    beside = {name: stays[name] for name, wanted in (("critic", critic), ("reference", reference)) if wanted}
    needed = held.peak + sum(beside.values()) + held.outside
    if needed > gpu_bytes * (1 + TOLERANCE):
        parts = held.parts | beside
        most = max(parts, key=parts.get)
        advice = OFFLOAD if most in beside else "`retool plan` lists the layouts that fit"
        raise UserError(
            f"An update with parallel.tp={layout.tp}, pp={layout.pp} and "
            f"micro_batch_tokens={layout.micro_batch_tokens} needs about {needed / GIB:.0f} GiB on a "
            f"GPU{_listed(beside)} and this node's have {gpu_bytes / GIB:.0f} GiB; its largest part: {most} "
            f"({parts[most] / GIB:.0f} GiB): {advice}."
        )
    there = stays["policy"] + sum(beside.values()) + held.outside
    if engine and there + parallel.gpu_memory_utilization * gpu_bytes > gpu_bytes * (1 + TOLERANCE):
        raise UserError(
            f"vLLM takes parallel.gpu_memory_utilization={parallel.gpu_memory_utilization} of each GPU's "
            f"{gpu_bytes / GIB:.0f} GiB, and the policy{_listed(beside)} holds {there / GIB:.0f} GiB next to it: lower "
            f"that share, or {OFFLOAD}."
        )
    return needed


def _listed(beside: Mapping[str, float]) -> str:
    return "".join(f", with {size / GIB:.0f} GiB of the {name}" for name, size in beside.items())


# A trainer's and an engine's process of one GPU: a step of the 7B policy on two GPUs without offload took 23.6 GB of
# the whole machine (benchmarks/results/rl_step.json), with MIN_CPU_MEMORY_BYTES counted for the rest.
PROCESS_BYTES = 8 * GIB


@dataclass(frozen=True)
class Needs:
    """Bytes of the fullest node, by what they are for."""

    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def least(self) -> float:
        """Return the bytes below which a node is refused: the prediction, less its error where it is one."""
        return self.total / (1 + TOLERANCE * (len(self.parts) > 1))


def pinned(size: float) -> int:
    """Return the bytes that torch takes for `size` bytes of pinned memory: a power of two
    (ATen/core/CachingHostAllocator.h)."""
    return 1 << (int(size) - 1).bit_length() if size >= 1 else 0


def tensors(shape: Shape, layout: Layout, stage: int) -> list[float]:
    """Elements of each large tensor of one tensor-parallel rank of a stage; a layer's norms and biases are nothing."""
    layer = [
        shape.hidden * (shape.q_width + 2 * shape.kv_width),
        shape.hidden * shape.q_width,
        2 * shape.hidden * shape.ffn,
        shape.hidden * shape.ffn,
    ]
    ends = (stage == 0) + (stage == layout.pp - 1 and not (shape.tied and layout.pp == 1))
    every = layer * (shape.layers // layout.pp) + [shape.embedding_parameters] * ends
    return [elements / layout.tp for elements in every]


def trained(shape: Shape, layout: Layout, stage: int, megatron: Mapping) -> dict[str, float]:
    """Bytes that one rank's model leaves in host memory while vLLM generates.

    verl (utils/megatron_utils.py, release 0.9.1) copies the weights' one buffer and each tensor of the optimizer, both
    pinned; gradients are dropped, not copied.
    """
    parts: dict[str, float] = {}
    if megatron.get("param_offload", False):
        parts["weights"] = pinned(BF16 * trained_parameters(shape, layout, stage))
        if shape.lora:  # frozen weights, pageable
            parts["weights"] += BF16 * stage_parameters(shape, layout, stage)
    if megatron.get("optimizer_offload", False):
        size = sum(pinned(FP32 * elements) for elements in tensors(shape, layout, stage))
        parts["optimizer"] = ADAM / FP32 * size / (layout.dp * layout.cp)
        if shape.experts or shape.lora:  # hundreds of small tensors: their sum, as if each were a power of two
            parts["optimizer"] = update.optimizer_bytes(shape, layout, trained_parameters(shape, layout, stage))
    return parts


def node_needs(config: DictConfig, model: Path | Shape | None) -> Needs:
    """Return a node's needs; for other stages than sft and rl, and for a model that the planner does not know, the
    least.

    model: the policy's folder, None when it is not there, or its shape.
    """
    shape = known(model) if isinstance(model, Path) else model
    parallel, cuda = config.parallel, config.parallel.device == "cuda"
    base = {"processes": machine.MIN_CPU_MEMORY_BYTES + cuda * parallel.gpus_per_node * PROCESS_BYTES}
    if "train" not in config or shape is None:
        return Needs(base)
    shape = shape.adapted(config)
    megatron, recipe = parallel.megatron, config.get("recipe", {})
    cp = megatron.get("context_parallel_size") or 1
    dp = parallel.nodes * parallel.gpus_per_node // (parallel.tp * parallel.pp * cp)
    layout = layout_of(parallel, dp=dp)
    trained_models = 1 + (recipe.get("advantage") == "gae")
    if "n" in config.train:
        longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
        base["trajectories"] = config.train.batch * config.train.n * longest * TOKEN_BYTES / parallel.nodes
    nodes = []
    for node in range(parallel.nodes):
        parts = dict(base)
        for rank in range(node * parallel.gpus_per_node, (node + 1) * parallel.gpus_per_node):
            stage = rank // (layout.tp * layout.cp * layout.dp)  # pipeline stages are the outermost groups
            for name, size in trained(shape, layout, stage, megatron).items() if cuda else ():
                parts[name] = parts.get(name, 0.0) + size * trained_models
            if cuda and not shape.lora and recipe.get("kl_loss") and megatron.get("param_offload", False):
                reference = BF16 * stage_parameters(shape, layout, stage)  # pageable
                parts["reference"] = parts.get("reference", 0.0) + reference
        nodes.append(Needs(parts))
    return max(nodes, key=lambda needs: needs.total)


def asked_gib(config: DictConfig) -> int | None:
    """GiB to ask a cluster for on every node: the prediction and its error. None where the planner knows no model."""
    shape = shape_of(config) if "train" in config and config.parallel.device == "cuda" else None
    return math.ceil(node_needs(config, shape).total * (1 + TOLERANCE) / GIB) if shape else None


def check(needs: Needs, *, memory: float) -> None:
    """Refuse a node with `memory` bytes available. Raises UserError."""
    if needs.least > memory:
        most = sorted(needs.parts.items(), key=lambda part: -part[1])[:3]
        largest = ", ".join(f"{name} {size / GIB:.0f} GiB" for name, size in most)
        more = ", or keep more on the GPUs (parallel.megatron.*_offload=false)." if "optimizer" in needs.parts else "."
        raise UserError(
            f"A node needs about {needs.total / GIB:.0f} GiB of memory ({largest}) and {memory / GIB:.0f} GiB are "
            f"available{machine.limited()}: take nodes with more memory{more}"
        )
