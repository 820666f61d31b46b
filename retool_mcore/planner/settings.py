"""What of verl's Megatron settings changes memory or time: the switches of a Layout."""

from collections.abc import Mapping
from typing import Any


def switches(megatron: Mapping[str, Any], *, fused_kernels: bool = False) -> dict[str, Any]:
    """Fields of Layout that `megatron`, an engine section of verl's configuration, sets.

    Args:
        megatron: as parallel.megatron; keys that are missing have verl's defaults.
        fused_kernels: verl's model.use_fused_kernels.
    """
    transformer = megatron.get("override_transformer_config") or {}
    ours = megatron.get("override_mcore_model_config") or {}
    in_place = ours.get("fused_log_probs", False)
    kind = transformer.get("recompute_granularity") or "none"
    modules = list(transformer.get("recompute_modules") or ["core_attn"])
    return {
        "recompute": "mlp" if kind == "selective" and modules == ["mlp"] else kind,
        "fused_swiglu": bool(transformer.get("bias_activation_fusion")),
        "fused_rope": bool(transformer.get("apply_rope_fusion")),
        "fused_wgrad": bool(transformer.get("gradient_accumulation_fusion")),
        "fused_log_probs": True if fused_kernels else "in_place" if in_place else False,
        "half_logits": bool(ours.get("half_logits")),
        "overlap": bool((megatron.get("override_ddp_config") or {}).get("overlap_grad_reduce")),
    }
