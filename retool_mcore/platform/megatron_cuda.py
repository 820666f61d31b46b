"""Megatron-core on CUDA without NVIDIA Apex: weight gradients are added to the float32 buffer by the product itself.

Adapted place (megatron-core 0.18.2): megatron/core/tensor_parallel/layers.py:46,600. Transformer Engine's layers do
this themselves (`gradient_accumulation_fusion`); only Megatron's own column-parallel layer, which is the output layer,
asks for Apex's `fused_weight_gradient_mlp_cuda` and refuses the setting for the whole model without it. Transformer
Engine has the product that it needs: cuBLASLt with bfloat16 operands, adding to a float32 result.

Imported by `verl_cpu`'s import hook when verl's Megatron engine is imported: trainer processes only.
"""

import torch
from megatron.core.tensor_parallel import layers


class WeightGradient:
    """Stands for the module fused_weight_gradient_mlp_cuda: `main_grad` (out, in) += `grad_output`^T @ `inputs`."""

    @staticmethod
    def wgrad_gemm_accum_fp32(inputs, grad_output, main_grad):
        from transformer_engine.pytorch.cpp_extensions import general_gemm

        general_gemm(
            inputs, grad_output, out_dtype=main_grad.dtype, layout="NT", out=main_grad, accumulate=True, grad=True
        )

    wgrad_gemm_accum_fp16 = wgrad_gemm_accum_fp32


def fuses() -> bool:
    """Whether Megatron's output layer can add its weight gradient to the buffer: by Apex, or by this adapter."""
    return layers._grad_accum_fusion_available


def install() -> None:
    """Put the product in place where there is CUDA and no Apex; otherwise nothing."""
    if torch.cuda.is_available() and not layers._grad_accum_fusion_available:
        layers.fused_weight_gradient_mlp_cuda = WeightGradient
        layers._grad_accum_fusion_available = True
