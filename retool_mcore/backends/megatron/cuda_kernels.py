"""Megatron-core on CUDA: two kernels of Transformer Engine's where Megatron has a slower one or none.

Adapted places (megatron-core 0.18.2):
- megatron/core/tensor_parallel/layers.py:46,600: without NVIDIA Apex, weight gradients are added to the float32 buffer
  by the product itself. Transformer Engine's layers do so themselves (`gradient_accumulation_fusion`); only Megatron's
  own column-parallel layer, which is the output layer, asks for Apex's `fused_weight_gradient_mlp_cuda` and refuses the
  setting for the whole model without it. Transformer Engine has the product that it needs: cuBLASLt with bfloat16
  operands, adding to a float32 result.
- megatron/core/fusions/fused_bias_swiglu.py:147: SwiGLU's backward pass. torch.compile makes a kernel of it that takes
  1.5 times as long, and 7 times once the number of tokens changes.

Imported by `verl_cpu`'s import hook when verl's Megatron engine is imported: trainer processes only.
"""

import torch
from megatron.core.fusions import fused_bias_swiglu
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


class SwiGLU(fused_bias_swiglu.SwiGLUFunction):
    """silu(first half) * second half, of rows; the gradient by Transformer Engine's kernel."""

    @staticmethod
    def backward(ctx, grad_output):
        import transformer_engine_torch as kernels

        inputs = ctx.saved_tensors[0].to(ctx.ori_input_dtype)
        return kernels.dswiglu(grad_output.contiguous(), inputs, None), None, None


def installed() -> bool:
    """Whether both are in place, the product by Apex or by this adapter."""
    return layers._grad_accum_fusion_available and fused_bias_swiglu.SwiGLUFunction is SwiGLU


def install() -> None:
    """Put both in place where there is CUDA, the product only without Apex; otherwise nothing."""
    if not torch.cuda.is_available():
        return
    fused_bias_swiglu.SwiGLUFunction = SwiGLU
    if not layers._grad_accum_fusion_available:
        layers.fused_weight_gradient_mlp_cuda = WeightGradient
        layers._grad_accum_fusion_available = True
