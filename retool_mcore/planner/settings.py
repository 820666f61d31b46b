"""The settings of verl's Megatron that change memory or time: the switches of a Layout."""

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from retool_mcore.planner.layout import Layout
from retool_mcore.planner.parallel import check_layout
from retool_mcore.planner.shape import Model, Shape

# Fields of Layout that one key below `parallel` sets; recomputation needs several (RECOMPUTE).
KEYS = {
    "tp": "tp",
    "pp": "pp",
    "vpp": "megatron.virtual_pipeline_model_parallel_size",
    "cp": "megatron.context_parallel_size",
    "ep": "ep",
    "micro_batch_tokens": "micro_batch_tokens",
    "param_offload": "megatron.param_offload",
    "optimizer_offload": "megatron.optimizer_offload",
}
# By kind of recomputation, the overrides below parallel.megatron.override_transformer_config.recompute_.
RECOMPUTE = {
    "none": ["granularity=null"],
    "selective": ["granularity=selective", "modules=[core_attn]"],
    "mlp": ["granularity=selective", "modules=[mlp]"],
    "full": ["granularity=full", "method=uniform", "num_layers=1"],
}


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
        "packed": bool(ours.get("packing")),
        "overlap": bool((megatron.get("override_ddp_config") or {}).get("overlap_grad_reduce")),
    }


def sizes(parallel: DictConfig) -> dict[str, Any]:
    """Fields of Layout that the group `parallel` sets itself, as check_layout takes them, too."""
    degrees = {size: OmegaConf.select(parallel, KEYS[size]) or 1 for size in ("tp", "pp", "vpp", "cp", "ep")}
    return degrees | {"sequence_parallel": parallel.sequence_parallel}


def layout_of(parallel: DictConfig, *, dp: int) -> Layout:
    """The layout that the group `parallel` describes, with `dp` data-parallel ranks."""
    megatron = parallel.megatron
    return Layout(
        dp=dp,
        micro_batch_tokens=parallel.micro_batch_tokens,
        param_offload=megatron.get("param_offload", False),
        optimizer_offload=megatron.get("optimizer_offload", False),
        **sizes(parallel),
        **switches(megatron),
    )


def checked_layout(model: Model | Shape, parallel: DictConfig) -> Layout:
    """Return the layout over all devices of the group. Raises UserError when it does not divide them or the model."""
    world = {"nodes": parallel.nodes, "gpus_per_node": parallel.gpus_per_node}
    return layout_of(parallel, dp=check_layout(model, **world, **sizes(parallel)))


def overrides(before: Layout, after: Layout) -> list[str]:
    """Words of the command line that make the group `parallel` of one layout that of another."""
    new = {field: getattr(after, field) for field in KEYS if getattr(after, field) != getattr(before, field)}
    words = {field: "null" if (field, value) == ("vpp", 1) else str(value).lower() for field, value in new.items()}
    parts = [f"parallel.{KEYS[field]}={word}" for field, word in words.items()]
    if after.shards_sequence != before.shards_sequence:
        parts.append(f"parallel.sequence_parallel={str(after.shards_sequence).lower()}")
    if after.recompute != before.recompute:
        place = "parallel.megatron.override_transformer_config.recompute_"
        parts += [f"{place}{word}" for word in RECOMPUTE[after.recompute]]
    return parts
