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

WHOLE_SEQUENCES = {
    "tensor_model_parallel_size": 1,
    "context_parallel_size": 1,
    "dynamic_context_parallel": False,
    "use_remove_padding": True,
}


def engine_with(switches, kind=engine.Engine, **layout):
    """An engine of `kind` that no model was loaded into."""
    made = kind.__new__(kind)
    made.engine_config = SimpleNamespace(override_mcore_model_config=switches, **WHOLE_SEQUENCES | layout)
    made.tf_config = None
    return made


@pytest.mark.parametrize(
    ("switches", "options"),
    [
        ({"fused_log_probs": True, "half_logits": True}, {"fp32_output": False}),
        ({"fused_log_probs": False, "half_logits": True}, {}),
        ({"fused_log_probs": True}, {}),
    ],
)
def test_half_logits_stay_in_the_models_type_only_where_the_fused_kernel_reads_them(monkeypatch, switches, options):
    assert inspect.signature(Float16Module.forward).parameters["fp32_output"].default is True
    wrapper = Float16Module.__new__(Float16Module)
    torch.nn.Module.__init__(wrapper)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), wrapper)
    monkeypatch.setattr(MegatronEngineWithLMHead, "_build_megatron_module", lambda self: [model])
    engine_with(switches)._build_megatron_module()
    assert getattr(wrapper.forward, "keywords", {}) == options


def test_verls_own_log_probs_always_get_float32(monkeypatch):
    got = []

    def verls_own(self, logits, *rest, **options):
        got.append(logits.dtype)

    monkeypatch.setattr(MegatronEngineWithLMHead, "_lm_head_logits_processor", verls_own)
    logits = torch.zeros(1, 2, 3, dtype=torch.bfloat16)
    engine_with({"fused_log_probs": True, "half_logits": True})._lm_head_logits_processor(
        logits, None, None, calculate_sum_pi_squared=True, distillation_use_topk=False, distillation_only=False
    )
    assert got == [torch.float32]


@pytest.mark.parametrize(("model", "kind"), [("language_model", engine.Engine), ("value_model", engine.CriticEngine)])
def test_policy_and_critic_pack_only_where_they_are_told_to(monkeypatch, model, kind):
    def packer():
        return engine.micro_batches.transformer_impl.prepare_micro_batches

    def verls_own(self, data, loss, forward_only=False):
        used.append(packer())

    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")
    monkeypatch.setenv("VERL_ENGINE_VENDOR", "")
    engine.register_engines()
    assert EngineRegistry.get_engine_cls(model, "megatron") is kind
    monkeypatch.setattr(MegatronEngineWithLMHead, "forward_backward_batch", verls_own)
    used, stock = [], packer()
    for packing in (True, False):
        engine_with({"packing": packing}, kind).forward_backward_batch({}, None)
    assert used[0] is not stock and used[1] is stock


@pytest.mark.parametrize(
    ("packing", "layout", "expected"),
    [
        (True, {}, True),
        (True, {"context_parallel_size": 2}, False),
        (True, {"use_remove_padding": False}, False),
        (False, {}, False),
    ],
)
@pytest.mark.parametrize(
    ("kind", "stock"),
    [(engine.Engine, MegatronEngineWithLMHead), (engine.CriticEngine, MegatronEngineWithValueHead)],
)
def test_rows_are_moved_by_our_indices_only_where_sequences_stay_whole(
    monkeypatch, kind, stock, packing, layout, expected
):
    def ours():
        return packed_layout.PACK.module.preprocess_thd_engine is not packed_layout.PACK.stock

    def verls_own(self, batches, *rest):
        seen.append((ours(), next(batches)["input_ids"]))
        return None, ours

    seen = []
    monkeypatch.setattr(stock, "forward_step", verls_own)
    ids = torch.nested.as_nested_tensor([torch.arange(2), torch.arange(3)], layout=torch.jagged)
    batches = iter([TensorDict({"input_ids": ids}, batch_size=2)])
    _, loss_sees_ours = engine_with({"packing": packing}, kind, **layout).forward_step(batches, None, None, None)
    [(forward_sees_ours, got)] = seen
    assert forward_sees_ours is expected and loss_sees_ours() is expected
    assert torch.equal(got.values(), ids.values()) and not ours()


def test_log_probabilities_without_a_loss_are_not_waited_for():
    def results(device, packing):
        data = {"input_ids": torch.zeros(3, device=device)}
        found = {"log_probs": torch.zeros(3, device=device, requires_grad=True)}
        loss, output = engine_with({"packing": packing}).postprocess_micro_batch_func(found, data, True, None)
        return loss, output.pop("model_output")["log_probs"], output

    loss, log_probs, _ = results("meta", packing=True)  # on this device, waiting for a value is an error
    assert loss.device.type == "meta" and not log_probs.requires_grad
    loss, log_probs, rest = results("cpu", packing=True)
    stock_loss, stock_log_probs, stock_rest = results("cpu", packing=False)
    assert torch.equal(loss, stock_loss) and torch.equal(log_probs, stock_log_probs) and rest == stock_rest
