"""Do an update and the models beside vLLM fit the GPUs? By the planner's arithmetic
(retool_mcore/planner/memory.py)."""

from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.errors import UserError
from retool_mcore.planner.layout import Batch
from retool_mcore.planner.memory import GIB, memory, models, staying
from retool_mcore.planner.settings import layout_of
from retool_mcore.planner.shape import FAMILIES, Shape, read_json
from retool_mcore.preflight import machine

# A job is refused only when the prediction is so far beyond the GPU that its error does not matter.
TOLERANCE = 0.07
PIECES = 8  # sequences that fill a micro-batch
OFFLOAD = (
    "set parallel.megatron.param_offload=true and parallel.megatron.optimizer_offload=true, or spread the models over "
    "more GPUs"
)


def smallest_gpu_bytes(nvidia_smi: str = "nvidia-smi") -> int | None:
    """Memory of this node's smallest GPU; None when nvidia-smi does not tell."""
    sizes = machine.gpu_values("memory.total", nvidia_smi)
    return int(min(sizes)) * 2**20 if sizes else None


def check_update(
    parallel: DictConfig,
    folder: Path,
    *,
    dp: int,
    gpu_bytes: int,
    critic: bool = False,
    reference: bool = False,
    engine: bool = False,
) -> float | None:
    """Refuse a layout whose update needs more than `gpu_bytes` on a GPU; returns the bytes that it should need.

    A micro-batch is taken to be full. None: a model whose parts the planner does not know.

    Args:
        folder: the policy's.
        critic: PPO's, which has the policy's layout and lies beside it, unless parallel.megatron moves both away.
        reference: the starting policy for the KL term, whose weights lie there too.
        engine: vLLM shares the GPUs and is given its share of them while the models stay.
    """
    if read_json(folder / "config.json").get("model_type") not in FAMILIES:
        return None
    layout = layout_of(parallel, dp=dp)
    piece = layout.micro_batch_tokens * layout.cp // PIECES
    if piece < 1:
        return None
    shape = Shape.from_hf(folder)
    micro_batches = 2 * layout.pp * layout.vpp
    held = memory(shape, layout, Batch((piece,) * (PIECES * micro_batches * dp)))
    stays = {name: staying(parts, layout) for name, parts in models(shape, layout, held.stage).items()}
    beside = {name: stays[name] for name, wanted in (("critic", critic), ("reference", reference)) if wanted}
    needed = held.peak + sum(beside.values()) + held.outside
    if needed > gpu_bytes * (1 + TOLERANCE):
        parts = held.parts | beside
        most = max(parts, key=parts.get)
        raise UserError(
            f"An update with parallel.tp={layout.tp}, pp={layout.pp} and "
            f"micro_batch_tokens={layout.micro_batch_tokens} needs about {needed / GIB:.0f} GiB on a GPU"
            f"{_told(beside)} and this node's have {gpu_bytes / GIB:.0f} GiB; its largest part: {most} "
            f"({parts[most] / GIB:.0f} GiB): "
            + (OFFLOAD if most in beside else "`retool plan` lists the layouts that fit")
            + "."
        )
    there = stays["policy"] + sum(beside.values()) + held.outside
    if engine and there + parallel.gpu_memory_utilization * gpu_bytes > gpu_bytes * (1 + TOLERANCE):
        raise UserError(
            f"Beside vLLM, which is given parallel.gpu_memory_utilization={parallel.gpu_memory_utilization} of each "
            f"GPU's {gpu_bytes / GIB:.0f} GiB, the policy{_told(beside)} holds {there / GIB:.0f} GiB: "
            f"lower it, or {OFFLOAD}."
        )
    return needed


def _told(beside: Mapping[str, float]) -> str:
    return "".join(f", with {size / GIB:.0f} GiB of the {name}" for name, size in beside.items())
