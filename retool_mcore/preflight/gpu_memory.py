"""Does an update fit the GPUs? By the planner's arithmetic (retool_mcore/plan/memory.py), before an engine starts."""

import shutil
import subprocess
from pathlib import Path

from omegaconf import DictConfig

from retool_mcore.errors import UserError
from retool_mcore.plan.layout import Batch, Layout
from retool_mcore.plan.memory import GIB, memory
from retool_mcore.plan.settings import switches
from retool_mcore.plan.shape import FAMILIES, Shape
from retool_mcore.preflight.model import read_json

# A job is refused only when the prediction is so far beyond the GPU that its error does not matter.
TOLERANCE = 0.07
PIECES = 8  # sequences that fill a micro-batch


def smallest_gpu_bytes(nvidia_smi: str = "nvidia-smi") -> int | None:
    """Memory of this node's smallest GPU; None when there is no driver or it does not tell (parts of a GPU, MIG)."""
    if shutil.which(nvidia_smi) is None:
        return None
    command = [nvidia_smi, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    sizes = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    if answer.returncode or not sizes or not all(size.isdigit() for size in sizes):
        return None
    return min(map(int, sizes)) * 2**20


def layout_of(parallel: DictConfig, *, dp: int) -> Layout:
    """The layout that the group `parallel` describes, with `dp` data-parallel ranks."""
    megatron = parallel.megatron
    return Layout(
        tp=parallel.tp,
        pp=parallel.pp,
        vpp=megatron.get("virtual_pipeline_model_parallel_size") or 1,
        cp=megatron.get("context_parallel_size") or 1,
        dp=dp,
        sequence_parallel=parallel.sequence_parallel,
        micro_batch_tokens=parallel.micro_batch_tokens,
        **switches(megatron),
    )


def check_update(parallel: DictConfig, folder: Path, *, dp: int, gpu_bytes: int) -> float | None:
    """Refuse a layout whose update needs more than `gpu_bytes` on a GPU; returns the bytes that it should need.

    `folder` is the policy's. A micro-batch is taken to be full. None: a model whose parts the planner does not know.
    """
    if read_json(folder / "config.json").get("model_type") not in FAMILIES:
        return None
    layout = layout_of(parallel, dp=dp)
    piece = layout.micro_batch_tokens * layout.cp // PIECES
    if piece < 1:
        return None
    micro_batches = 2 * layout.pp * layout.vpp
    held = memory(Shape.from_hf(folder), layout, Batch((piece,) * (PIECES * micro_batches * dp)))
    needed = held.peak + held.outside
    if needed > gpu_bytes * (1 + TOLERANCE):
        most = max(held.parts, key=held.parts.get)
        raise UserError(
            f"An update with parallel.tp={layout.tp}, pp={layout.pp} and "
            f"micro_batch_tokens={layout.micro_batch_tokens} needs about {needed / GIB:.0f} GiB on a GPU and this "
            f"node's have {gpu_bytes / GIB:.0f} GiB; most of it are the {most} ({held.parts[most] / GIB:.0f} GiB): "
            "`retool plan` lists the layouts that fit."
        )
    return needed
