"""Which modules of the engine the switches reach; what they do on a GPU: docs/measured/training.md."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from megatron.core.transformer.module import Float16Module
from tensordict import TensorDict
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.megatron import MegatronEngineWithLMHead, MegatronEngineWithValueHead

from retool_mcore.backends.megatron import engine, packed_layout


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
    engine.register_engines()
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


PACKED = dict(context_parallel_size=1, dynamic_context_parallel=False, use_remove_padding=True)


@pytest.mark.parametrize(
    "change", [{}, {"context_parallel_size": 2}, {"use_remove_padding": False}, {"packing": False}]
)
@pytest.mark.parametrize(
    ("made", "stock"),
    [(engine.Engine, MegatronEngineWithLMHead), (engine.CriticEngine, MegatronEngineWithValueHead)],
)
def test_rows_are_moved_by_our_indices_only_where_sequences_stay_whole(monkeypatch, made, stock, change):
    def ours():
        return packed_layout.PACK.module.preprocess_thd_engine is not packed_layout.PACK.stock

    seen = []
    monkeypatch.setattr(
        stock, "forward_step", lambda self, batches, *rest: (seen.append((ours(), next(batches))), ours)
    )
    one = made.__new__(made)
    one._overlap = None
    one.engine_config = SimpleNamespace(
        override_mcore_model_config={"packing": change.get("packing", True)}, **PACKED | change
    )
    ids = torch.nested.as_nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    _, loss = one.forward_step(iter([TensorDict({"input_ids": ids}, batch_size=2)]), None, None, None)
    assert [where for where, _ in seen] == [not change] and loss() is (not change)
    assert torch.equal(seen[0][1]["input_ids"].values(), ids.values()) and not ours()


def test_log_probabilities_without_a_loss_are_not_waited_for(monkeypatch):
    one = engine.Engine.__new__(engine.Engine)
    one.engine_config = SimpleNamespace(override_mcore_model_config={"packing": True})
    one.tf_config = None

    def results(device):
        data = {"input_ids": torch.zeros(3, device=device)}
        found = {"log_probs": torch.zeros(3, device=device, requires_grad=True)}
        return one.postprocess_micro_batch_func(found, data, True, None)

    scaled, output = results("meta")
    assert scaled.device.type == "meta" and not output["model_output"]["log_probs"].requires_grad
    (ours, our_output) = results("cpu")
    one.engine_config.override_mcore_model_config["packing"] = False
    one.engine_config.dynamic_context_parallel = False
    theirs, their_output = results("cpu")
    assert torch.equal(ours, theirs) and torch.equal(
        our_output.pop("model_output")["log_probs"], their_output.pop("model_output")["log_probs"]
    )
    assert our_output == their_output
