"""Megatron-core on a machine without CUDA: the CPU generator, and layers under Transformer Engine's parameter names.

Adapted places (megatron-core 0.16.1, mbridge 0.15.1):
- megatron/core/tensor_parallel/random.py:73: the RNG tracker writes the CPU generator.
- mbridge/core/llm_bridge.py:149 asks for the Transformer Engine layer spec, and mbridge's weight names are Transformer
  Engine's: `TESpecProvider` and `TENorm` of gpt_layer_specs are replaced by CPU layers with the same parameter names,
  so that weight conversion stays mbridge's own.
- Attention is torch's SDPA, for padded batches and for packed ones (thd): `use_remove_padding` runs as on a GPU.
- megatron/core/optimizer/distrib_optimizer.py:825,911: a loaded checkpoint leaves torch's Adam with one step count,
  which all parameters share and advance, set back to 0: the bias correction, and with it every later update, is wrong.
- Experts are those of experts_cpu.py.
- megatron/core/optimizer/distrib_optimizer.py:940: float32 parameters are copied into leaves outside no_grad.

Imported by `verl_cpu`'s import hook when verl's Megatron engine is imported: trainer processes only.
Not covered: dropout in packed attention across ranks, context parallelism, FP8.
"""

import logging

import megatron.core.models.gpt.gpt_layer_specs as layer_specs
import megatron.core.optimizer.distrib_optimizer as distrib_optimizer
import megatron.core.tensor_parallel.random as megatron_random
import torch
import torch.nn.functional as F
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint

from retool_mcore.backends.cpu import experts_cpu, torch_cpu


def _norm_parameters(module: torch.nn.Module, prefix: str, size: int, config) -> None:
    """Add `{prefix}weight` (ones) and, for LayerNorm, `{prefix}bias` (zeros), each (size,) of params_dtype."""
    fills = {"weight": torch.ones} | ({} if config.normalization == "RMSNorm" else {"bias": torch.zeros})
    for name, fill in fills.items():
        parameter = torch.nn.Parameter(fill(size, dtype=config.params_dtype))
        # Under sequence parallelism each rank sees a part of the tokens: the gradients are summed over TP.
        parameter.sequence_parallel = config.sequence_parallel
        module.register_parameter(prefix + name, parameter)


def _normalise(x, module, prefix, eps):
    weight, bias = getattr(module, prefix + "weight"), getattr(module, prefix + "bias", None)
    shape = (x.shape[-1],)
    return F.rms_norm(x, shape, weight, eps) if bias is None else F.layer_norm(x, shape, weight, bias, eps)


class Norm(torch.nn.Module):
    """TENorm's place: megatron-core's own TorchNorm refuses sequence parallelism."""

    def __init__(self, config, hidden_size, eps=1e-5, **kwargs):
        super().__init__()
        self.eps = eps
        _norm_parameters(self, "", hidden_size, config)

    def forward(self, x):
        return _normalise(x, self, "", self.eps)


class LayerNormColumnParallelLinear(ColumnParallelLinear):
    """TELayerNormColumnParallelLinear's place: a norm and a column-parallel linear, with its parameter names."""

    def __init__(self, input_size, output_size, *, config, **kwargs):
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.norm_eps = config.layernorm_epsilon
        _norm_parameters(self, "layer_norm_", input_size, config)

    def forward(self, x, *args, **kwargs):
        return super().forward(_normalise(x, self, "layer_norm_", self.norm_eps), *args, **kwargs)

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        state = self.state_dict(prefix="", keep_vars=True)
        return make_sharded_tensors_for_checkpoint(state, prefix, {"weight": 0, "bias": 0}, sharded_offsets)


class Attention(DotProductAttention):
    """Causal SDPA. q (s, b, heads, d) with k, v (s, b, kv heads, d) or, packed, (t, heads, d); out (..., heads * d)."""

    def forward(
        self, query, key, value, attention_mask, attn_mask_type=None, attention_bias=None, packed_seq_params=None
    ):
        mask_type = attn_mask_type or self.attn_mask_type
        assert mask_type in (AttnMaskType.causal, AttnMaskType.padding_causal) and attention_bias is None, mask_type
        if packed_seq_params is None:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            out = self._attend(q, k, v)
            return out.permute(2, 0, 1, 3).reshape(*query.shape[:2], -1)
        bounds = packed_seq_params.cu_seqlens_q_padded
        bounds = (packed_seq_params.cu_seqlens_q if bounds is None else bounds).tolist()
        parts = []
        for start, end in zip(bounds[:-1], bounds[1:], strict=True):
            if end > start:
                q, k, v = (x[start:end].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
                parts.append(self._attend(q, k, v)[0].transpose(0, 1))
        out = torch.cat(parts)
        out = F.pad(out, (0, 0, 0, 0, 0, query.shape[0] - out.shape[0]))
        return out.reshape(out.shape[0], -1)

    def _attend(self, q, k, v):
        dropout = self.config.attention_dropout if self.training else 0.0
        grouped = q.shape[1] != k.shape[1]
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=dropout, scale=self.softmax_scale, enable_gqa=grouped
        )


class SpecProvider(LocalSpecProvider):
    """The layers above, where mbridge asks for Transformer Engine's."""

    def fuse_layernorm_and_linear(self):
        return True

    def column_parallel_layer_norm_linear(self):
        return LayerNormColumnParallelLinear

    def layer_norm(self, rms_norm=False, for_qk=False):
        return Norm

    def core_attention(self):
        return Attention

    def grouped_mlp_modules(self, moe_use_grouped_gemm, moe_use_legacy_grouped_gemm):
        columns, rows = experts_cpu.ColumnParallelGroupedLinear, experts_cpu.RowParallelGroupedLinear
        return TEGroupedMLP, MLPSubmodules(linear_fc1=columns, linear_fc2=rows)


def installed() -> bool:
    return getattr(layer_specs, "TESpecProvider", None) is SpecProvider


def install() -> None:
    """Put the CPU layers, generator and optimizer fixes in place, once a process; nothing where CUDA is available."""
    if torch.cuda.is_available() or installed():
        return
    torch_cpu.install()
    megatron_random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)
    # It warns at every fork of the tracker that the CPU state changed: here that is the purpose.
    logging.getLogger(megatron_random.__name__).addFilter(lambda r: "CPU RNG state changed" not in r.getMessage())
    experts_cpu.install()
    layer_specs.TESpecProvider, layer_specs.TENorm, layer_specs.HAVE_TE = SpecProvider, Norm, True

    optimizer = distrib_optimizer.DistributedOptimizer
    set_states = torch.no_grad()(optimizer._set_main_param_and_optimizer_states)

    def with_own_step(self, model_param, tensors):
        group, order = self.model_param_group_index_map[model_param]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        state["step"] = state["step"].clone()
        set_states(self, model_param, tensors | {"step": state["step"]})

    optimizer._set_main_param_and_optimizer_states = with_own_step
