"""The start-up check: a plugin that did not load is only logged at debug level by verl, and a failed Megatron import
surfaces as "Unknown backend: megatron". Every stage calls `assert_adapters` before it builds an engine."""

import importlib.util

from retool_mcore.backends import patches
from retool_mcore.errors import UserError


def adapters() -> list[tuple[str, bool, str]]:
    """(adapter, took effect, what it is for) of the adapters that this machine needs."""
    import torch
    import verl  # noqa: F401  loads the verl.plugins entry points

    if torch.cuda.is_available():
        import verl.workers.engine.megatron  # noqa: F401  the import hook installs Megatron's adapter

        from retool_mcore.backends.megatron import cuda_kernels

        return [("megatron_cuda", cuda_kernels.installed(), "kernels of Transformer Engine's in Megatron")]
    from verl.plugin.platform.platform_manager import get_platform

    from retool_mcore.backends.cpu import verl_cpu

    rows = [("verl_cpu", verl_cpu.active() and get_platform().device_name == "cpu", "verl's cpu platform")]
    import verl.workers.engine.megatron  # noqa: F401  the import hook installs Megatron's adapter

    from retool_mcore.backends.cpu import megatron_cpu, torch_cpu

    rows += [
        ("torch_cpu", torch_cpu.installed(), "cuda names on the CPU"),
        ("megatron_cpu", megatron_cpu.installed(), "Megatron layers without Transformer Engine"),
        ("vllm_cpu", _vllm_entry_point(), "vLLM weights that can be pushed again"),
    ]
    return rows


def assert_adapters() -> None:
    """Raise UserError when an adapter did not take effect; RuntimeError when verl has no Megatron engine, or when what
    is replaced of a library is not what ours was written for (patches.py)."""
    import torch

    patches.check("cuda" if torch.cuda.is_available() else "cpu")
    missing = [name for name, active, _ in adapters() if not active]
    if missing:
        raise UserError(
            f"the adapters {', '.join(missing)} did not take effect; start stages with `retool`, from an environment "
            "made by launch/setup.sh (the package must be installed: on PYTHONPATH alone its plugins are not found)"
        )
    import verl.workers.engine.megatron  # noqa: F401
    from verl.workers.engine.base import EngineRegistry

    if "megatron" not in EngineRegistry._engines.get("language_model", {}):
        raise RuntimeError("verl did not register its Megatron engine: importing megatron-core failed")


def has_apex() -> bool:
    """Whether NVIDIA Apex (not the unrelated package of that name) is installed, by its compiled modules."""
    return all(importlib.util.find_spec(name) for name in ("amp_C", "fused_weight_gradient_mlp_cuda"))


def _vllm_entry_point() -> bool:
    # Loaded by vLLM in its own processes: what can be checked here is that it will be found and does what it says.
    from importlib.metadata import entry_points

    from retool_mcore.backends.cpu import vllm_cpu

    points = {point.value for point in entry_points(group="vllm.general_plugins")}
    if "retool_mcore.backends.cpu.vllm_cpu:register" not in points:
        return False
    vllm_cpu.register()
    return vllm_cpu.installed()
