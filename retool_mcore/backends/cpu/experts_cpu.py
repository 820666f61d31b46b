"""Megatron's experts on a machine without CUDA: TEGroupedMLP over plain matrix products.

The parameters have Transformer Engine's names (`linear_fc1.weight0`, ...), which mbridge's conversion and Megatron's
checkpoints go by; the module around them is Megatron's own (megatron/core/transformer/moe/experts.py).
Not covered: biases, FP8.

Adapted places (megatron-core 0.16.1):
- megatron/core/transformer/moe/moe_utils.py:1192: the router asks for a name that only Transformer Engine would define.
- megatron/core/transformer/moe/token_dispatcher.py:879: counts that are on the CPU already stay tensors, which
  all_to_all_single refuses.
"""

import megatron.core.transformer.moe.moe_utils as moe_utils
import megatron.core.transformer.moe.token_dispatcher as token_dispatcher
import torch
import torch.nn.functional as F
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker, get_expert_parallel_rng_tracker_name
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint


class _GroupedLinear(torch.nn.Module):
    """One matrix (out, in) an expert, cut over the expert-tensor-parallel ranks along `axis`."""

    axis = 0

    def __init__(self, num_gemms, input_size, output_size, *, config, init_method, bias, pg_collection, **kwargs):
        super().__init__()
        assert not bias, "experts with biases have no layer on the CPU"
        self.num_gemms, self.groups = num_gemms, pg_collection
        ranks = pg_collection.expt_tp.size()
        size = [output_size, input_size]
        size[self.axis] //= ranks
        with get_cuda_rng_tracker().fork(get_expert_parallel_rng_tracker_name()):
            for expert in range(num_gemms):
                weight = torch.nn.Parameter(torch.empty(size, dtype=config.params_dtype))
                init_method(weight)
                weight.allreduce = config.expert_model_parallel_size == 1
                # Else the gradient norm leaves out the experts of all tensor-parallel ranks but the first, as copies.
                weight.tensor_model_parallel = ranks > 1 or config.expert_model_parallel_size > 1
                weight.partition_dim, weight.partition_stride = self.axis, 1
                self.register_parameter(f"weight{expert}", weight)

    def forward(self, x, tokens_per_expert):
        parts = x.split(tokens_per_expert)
        return torch.cat([F.linear(part, getattr(self, f"weight{i}")) for i, part in enumerate(parts)]), None

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """Under the keys of experts that run one by one, as Transformer Engine's layer has it."""
        first, count = self.groups.ep.rank() * self.num_gemms, self.groups.ep.size() * self.num_gemms
        sharded = {}
        for expert in range(self.num_gemms):
            place = (*sharded_offsets, (len(sharded_offsets), first + expert, count))
            own = make_sharded_tensors_for_checkpoint(
                {"weight": getattr(self, f"weight{expert}")},
                "",
                {"weight": self.axis},
                place,
                tp_group=self.groups.expt_tp,
                dp_cp_group=metadata["dp_cp_group"],
            )
            replace_prefix_for_sharding(own, "", prefix)
            tensor = sharded[f"{prefix}weight{expert}"] = own["weight"]
            tensor.replica_id = (*tensor.replica_id[:2], self.groups.expt_dp.rank())
        return sharded


class ColumnParallelGroupedLinear(_GroupedLinear):
    """TEColumnParallelGroupedLinear's place."""


class RowParallelGroupedLinear(_GroupedLinear):
    """TERowParallelGroupedLinear's place; the token dispatcher sums over the ranks."""

    axis = 1


def install() -> None:
    """Put both adaptations in place."""
    moe_utils.te_general_gemm = None
    token_dispatcher.maybe_move_tensor_to_cpu = lambda x, as_numpy=False, record_stream=False: (
        x.numpy() if as_numpy and torch.is_tensor(x) else x
    )
