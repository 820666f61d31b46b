"""Does what a run keeps in a node's memory beside the GPUs fit there? By the planner's arithmetic."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.errors import UserError
from retool_mcore.planner.derived import TOKEN_BYTES
from retool_mcore.planner.layout import Layout
from retool_mcore.planner.memory import ADAM, BF16, FP32, GIB, optimizer_bytes, stage_parameters
from retool_mcore.planner.settings import layout_of
from retool_mcore.planner.shape import FAMILIES, Shape, read_json
from retool_mcore.preflight import machine
from retool_mcore.preflight.gpu_memory import TOLERANCE

# A trainer's and an engine's process of one GPU: a step of the 7B policy on two GPUs without offload took 23.6 GB of
# the whole machine (benchmarks/results/rl_step.json), of which MIN_CPU_MEMORY_BYTES are counted for the rest.
PROCESS_BYTES = 8 * GIB


@dataclass(frozen=True)
class Needs:
    """Bytes of the fullest node, by what they are for; `staged` of them lie in /dev/shm."""

    parts: Mapping[str, float]
    staged: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def least(self) -> float:
        """What a node is refused below: the prediction, less its error where it is one."""
        return self.total / (1 + TOLERANCE * (len(self.parts) > 1))


def pinned(size: float) -> int:
    """What torch takes for `size` bytes of pinned memory: a power of two (ATen/core/CachingHostAllocator.h)."""
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
    found: dict[str, float] = {}
    if megatron.get("param_offload", False):
        found["weights"] = pinned(BF16 * stage_parameters(shape, layout, stage))
    if megatron.get("optimizer_offload", False):
        size = sum(pinned(FP32 * elements) for elements in tensors(shape, layout, stage))
        found["optimizer"] = ADAM / FP32 * size / (layout.dp * layout.cp)
        if shape.experts:  # hundreds of small tensors: their sum, as if each were a power of two
            found["optimizer"] = optimizer_bytes(shape, layout, stage_parameters(shape, layout, stage))
    return found


def node_needs(config: DictConfig, folder: Path | None) -> Needs:
    """What a node needs; of other stages than sft and rl, and of a model that the planner does not know, the least.

    folder: the policy's, None when it is not there.
    """
    known = folder is not None and read_json(folder / "config.json").get("model_type") in FAMILIES
    return needs_of(config, Shape.from_hf(folder) if known else None)


def needs_of(config: DictConfig, shape: Shape | None) -> Needs:
    """The same of a model's shape."""
    parallel, cuda = config.parallel, config.parallel.device == "cuda"
    base = {"processes": machine.MIN_CPU_MEMORY_BYTES + cuda * parallel.gpus_per_node * PROCESS_BYTES}
    if "train" not in config or shape is None:
        return Needs(base, 0.0)
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
        parts, staged = dict(base), 0.0
        for rank in range(node * parallel.gpus_per_node, (node + 1) * parallel.gpus_per_node):
            stage = rank // (layout.tp * layout.cp * layout.dp)  # pipeline stages are the outermost groups
            for name, size in trained(shape, layout, stage, megatron).items() if cuda else ():
                parts[name] = parts.get(name, 0.0) + size * trained_models
            if cuda and recipe.get("kl_loss") and megatron.get("param_offload", False):
                reference = BF16 * stage_parameters(shape, layout, stage)  # pageable
                parts["reference"] = parts.get("reference", 0.0) + reference
            staged += optimizer_bytes(shape, layout, stage_parameters(shape, layout, stage))
        if config.train.async_save:
            # Rank 0 gathers and writes the Hugging Face weights.
            staged = trained_models * (staged + (BF16 if cuda else FP32) * shape.parameters * (node == 0))
            parts["checkpoint on its way to the disk"] = staged
        nodes.append(Needs(parts, staged * bool(config.train.async_save)))
    return max(nodes, key=lambda needs: needs.total)


def check(needs: Needs, *, memory: float, shm: float) -> None:
    """Refuse a node with `memory` bytes available and `shm` free in /dev/shm. Raises UserError."""
    if needs.staged > shm:
        raise UserError(
            f"A checkpoint lies in /dev/shm first ({needs.staged / GIB:.0f} GiB a node), which has {shm / GIB:.0f} GiB "
            "free: give the node or its container a larger /dev/shm, or set train.async_save=false."
        )
    if needs.least > memory:
        most = sorted(needs.parts.items(), key=lambda part: -part[1])[:3]
        told = ", ".join(f"{name} {size / GIB:.0f} GiB" for name, size in most)
        raise UserError(
            f"A node needs about {needs.total / GIB:.0f} GiB of memory ({told}) and {memory / GIB:.0f} GiB are "
            "available: take nodes with more memory"
            + (", set train.async_save=false" if needs.staged else "")
            + (", or keep more on the GPUs (parallel.megatron.*_offload=false)." if "optimizer" in needs.parts else ".")
        )
