"""Which modules of the engine the switches reach; what they do on a GPU: docs/performance.md."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from megatron.core.transformer.module import Float16Module
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead

from retool_mcore.train import engine


def wrapped():
    module = Float16Module.__new__(Float16Module)
    torch.nn.Module.__init__(module)
    return module


def build(monkeypatch, **switches):
    module = wrapped()
    monkeypatch.setattr(
        MegatronEngineWithLMHead,
        "_build_megatron_module",
        lambda self: [torch.nn.Sequential(torch.nn.Linear(1, 1), module)],
    )
    made = engine.Engine.__new__(engine.Engine)
    made.engine_config, made._load = SimpleNamespace(override_mcore_model_config=switches), True
    made._build_megatron_module()
    return getattr(module.forward, "keywords", {})


def test_half_logits_stay_in_the_models_type_only_where_the_fused_kernel_reads_them(monkeypatch):
    assert inspect.signature(Float16Module.forward).parameters["fp32_output"].default is True
    assert build(monkeypatch, fused_log_probs=True, half_logits=True) == {"fp32_output": False}
    assert build(monkeypatch, fused_log_probs=False, half_logits=True) == {}
    assert build(monkeypatch, fused_log_probs=True) == {}


def test_verls_own_log_probs_always_get_float32(monkeypatch):
    got = []
    monkeypatch.setattr(
        MegatronEngineWithLMHead,
        "_lm_head_logits_processor",
        lambda self, logits, *rest, **named: got.append(logits.dtype),
    )
    made = engine.Engine.__new__(engine.Engine)
    made.engine_config = SimpleNamespace(override_mcore_model_config={"fused_log_probs": True, "half_logits": True})
    options = dict.fromkeys(("calculate_sum_pi_squared", "distillation_use_topk", "distillation_only"), False)
    made._lm_head_logits_processor(
        torch.zeros(1, 2, 3, dtype=torch.bfloat16), None, None, **options | {"calculate_sum_pi_squared": True}
    )
    assert got == [torch.float32]


@pytest.mark.parametrize(("kind", "made"), [("language_model", engine.Engine), ("value_model", engine.CriticEngine)])
def test_policy_and_critic_pack_only_where_they_are_told_to(monkeypatch, kind, made):
    engine.use()
    assert EngineRegistry._engines[kind]["megatron"]["cuda"] is made
    seen = []
    monkeypatch.setattr(
        MegatronEngineWithLMHead,
        "forward_backward_batch",
        lambda self, data, loss, forward_only=False: seen.append(
            engine.micro_batches.transformer_impl.prepare_micro_batches
        ),
    )
    stock = engine.micro_batches.transformer_impl.prepare_micro_batches
    for packing in (True, False):
        one = made.__new__(made)
        one._overlap = None
        one.engine_config = SimpleNamespace(
            override_mcore_model_config={"packing": packing}, tensor_model_parallel_size=1, context_parallel_size=1
        )
        one.forward_backward_batch({}, None)
    assert seen[0] is not stock and seen[1] is stock
