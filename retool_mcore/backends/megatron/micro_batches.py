"""A mini-batch's sequences into full micro-batches (planner/packing.py) where verl's Megatron engine makes its own.

verl 0.9.1 balances the micro-batches by Karmarkar and Karp and starts over with one more until each keeps to the token
budget: seconds for 512 sequences, a minute for 1,024, and 4 to 12 % more micro-batches (benchmarks/planner/packing.py).

Adapted place: the name `prepare_micro_batches` of verl/workers/engine/megatron/transformer_impl.py, release 0.9.1, for
as long as an engine works on a mini-batch. backends/megatron/engine.py asks for it where
`parallel.megatron.override_mcore_model_config.packing` is true.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron import transformer_impl

from retool_mcore.backends.library_patch import LibraryPatch
from retool_mcore.planner.packing import Cost, pack, split

PREPARE = LibraryPatch(transformer_impl, "prepare_micro_batches")
COST = Cost(linear=24576, quadratic=1)  # verl's: calculate_workload


def packed(align: int) -> AbstractContextManager[None]:
    """Inside, verl's Megatron engine packs; each sequence counts with its padding to a multiple of `align` tokens."""

    def prepare(data, dp_group=None, num_batches_divided_by=None, **options):
        dynamic = tensordict_utils.get_non_tensor_data(data, key="use_dynamic_bsz", default=True)
        groups = tensordict_utils.get_non_tensor_data(data, key="force_group_size", default=1)
        if not dynamic or groups != 1 or not data["input_ids"].is_nested:
            return PREPARE.stock(data, dp_group=dp_group, num_batches_divided_by=num_batches_divided_by, **options)
        budget = data["max_token_len_per_gpu"] * tensordict_utils.get_non_tensor_data(data, key="sp_size", default=1)
        lengths = data["input_ids"].offsets().diff().tolist()
        multiple, agree = num_batches_divided_by or 1, partial(_most, dp_group)
        bins = fill(lengths, budget=budget, align=align, multiple=multiple, agree=agree)
        return select(data, bins), bins

    return PREPARE.applied(prepare)


def alignment(config: McoreEngineConfig) -> int:
    """verl pads every sequence of a packed micro-batch to a multiple of so many tokens (models/mcore/util.py)."""
    cp = config.context_parallel_size
    return config.tensor_model_parallel_size * (2 * cp if cp > 1 else 1)


def fill(lengths: Sequence[int], *, budget: int, align: int = 1, multiple: int = 1, agree=lambda count: count):
    """Indices of `lengths` in micro-batches of at most `budget` tokens, the cheap ones at both ends: a pipeline fills
    and drains with them.

    Args:
        lengths: tokens of each sequence of this data-parallel rank.
        align: each sequence takes its length rounded up to a multiple of it, and so does the budget.
        multiple: of the number of micro-batches (interleaved pipelines want whole groups).
        agree: from this rank's number of micro-batches to that of all data-parallel ranks.

    Raises:
        UserError: a sequence is longer than `budget`.
        ValueError: there are fewer sequences than micro-batches.
    """
    tokens = np.asarray(lengths, np.int64)
    costs = COST(tokens)
    bins = pack(tokens + -tokens % align, budget + -budget % align)
    count = agree(-(-len(bins) // multiple) * multiple)
    if count > len(tokens):
        raise ValueError(
            f"{len(tokens)} sequences do not make {count} micro-batches, which another data-parallel rank or the "
            "pipeline needs: raise parallel.micro_batch_tokens or the mini-batch."
        )
    rising = sorted(split(bins, count, costs), key=lambda chosen: float(costs[chosen].sum()))
    return rising[::2] + rising[1::2][::-1]


def select(data: TensorDict, bins: Sequence[Sequence[int]]) -> list[TensorDict]:
    """The rows of `data` that each of `bins` names; what is not by row is in every one."""
    parts: list[dict] = [{} for _ in bins]
    for name, column in data.items():
        if isinstance(column, torch.Tensor) and column.is_nested:
            rows, ragged = column.unbind(), getattr(column, "_ragged_idx", column.dim() - 1)
            for part, chosen in zip(parts, bins, strict=True):
                part[name] = tensordict_utils.nested_tensor_from_tensor_list(
                    [rows[row] for row in chosen], ragged_idx=ragged
                )
        else:
            for part, chosen in zip(parts, bins, strict=True):
                part[name] = column[torch.tensor(chosen)] if column.shape else column
    return [TensorDict(part, batch_size=len(chosen)) for part, chosen in zip(parts, bins, strict=True)]


def _most(group, count: int) -> int:
    """The largest number that a rank of `group` gives."""
    if group is None or not torch.distributed.is_initialized():
        return count
    most = torch.tensor([count], device=get_device_name())
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=group)
    return int(most.item())
