"""Which micro-batches overlap, how they are padded, and what Transformer Engine's layers are told; the buffers
themselves need GPUs (benchmarks/train/update.py --only tp-overlap)."""

from types import SimpleNamespace

import pytest
import torch
from verl.workers.config import McoreEngineConfig

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.megatron import tp_overlap
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.planner.parallel import check_tp_overlap

BUILT = dict.fromkeys(tp_overlap.SWITCHES, False) | {"ub_overlap_ag_fprop": True, "ub_overlap_rs_dgrad": True}


def layer(name):
    module = torch.nn.Linear(2, 2)
    module.ub_name = name
    for switch, value in BUILT.items():
        setattr(module, switch, value)
    return module


def switches(module):
    return {name: getattr(module, name) for name in tp_overlap.SWITCHES}


@pytest.fixture
def overlap(monkeypatch):
    started = []
    monkeypatch.setattr(tp_overlap, "_start", lambda shape, tp, dtype: started.append((shape, tp, dtype)))
    config = McoreEngineConfig(tensor_model_parallel_size=4, context_parallel_size=1)
    found = tp_overlap.Overlap(config, align=4, hidden=64)
    found.start(None)
    assert not started
    found.start(1022)
    found.start(512)
    assert started == [((1024, 64), 4, torch.bfloat16)]  # once, for whole alignments
    return found


def test_only_a_nearly_full_micro_batch_is_padded_and_overlapped(overlap):
    assert overlap.fits([500, 522]) and overlap.fits([973])
    assert not overlap.fits([970])  # 972 of 1,024 slots: padding would cost more than it gains
    assert not overlap.fits([513, 509, 1])  # 1,023 tokens, but 1,032 slots as verl pads them


def test_the_layers_and_the_engine_follow_the_micro_batch(overlap):
    model = torch.nn.Sequential(layer("qkv"), torch.nn.Linear(2, 2), layer("proj"))
    engine = SimpleNamespace(engine_config=overlap.config)
    for lengths, on in (([1000], True), ([10], False), ([1020], True), ([1000], True)):
        with overlap.chosen(engine, model, lengths):
            assert switches(model[0]) == switches(model[2]) == (BUILT if on else dict.fromkeys(BUILT, False))
            padded = (engine.engine_config.pad_to_length, engine.engine_config.pad_to_length_bucket)
            assert padded == ((True, 1024) if on else (False, 512))
        assert engine.engine_config is overlap.config
    with pytest.raises(ZeroDivisionError), overlap.chosen(engine, model, [1000]):
        1 / 0  # noqa: B018
    assert engine.engine_config is overlap.config


def test_context_parallel_ranks_hold_their_part_of_the_tokens(monkeypatch):
    started = []
    monkeypatch.setattr(tp_overlap, "_start", lambda shape, tp, dtype: started.append((shape, dtype)))
    config = McoreEngineConfig(tensor_model_parallel_size=2, context_parallel_size=2, dtype="float16")
    overlap = tp_overlap.Overlap(config, align=8, hidden=64)
    overlap.start(100)
    assert started == [((100, 64), torch.float16)] and overlap.tokens == 200


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["parallel=cpu-tp2"], "needs parallel.device=cuda"),
        (["parallel=1gpu"], "needs parallel.device=cuda, parallel.tp > 1"),
        (["parallel=2gpu", "parallel.sequence_parallel=false"], "sequence_parallel=true"),
        (["parallel=2gpu", "parallel.megatron.override_transformer_config.recompute_granularity=full"], "recompute"),
        (["parallel=2gpu", "parallel.megatron.override_transformer_config.fp8=hybrid"], "FP8"),
        (["parallel=2gpu"], None),
        (["parallel=2x8-80g"], None),
    ],
)
def test_what_cannot_be_had_is_refused_before_a_gpu_is_taken(overrides, said):
    switch = "+parallel.megatron.override_mcore_model_config.tp_overlap=true"
    if overrides[0] != "parallel=cpu-tp2":
        switch = switch.removeprefix("+")
    if len(overrides) > 1 and "override_transformer_config" in overrides[1]:
        overrides = [overrides[0], "+" + overrides[1]]
    layout = compose("rl", [*overrides, switch, "model.name=x"]).parallel
    checked = {"device": layout.device, "tp": layout.tp, "sequence_parallel": layout.sequence_parallel}
    if said is None:
        check_tp_overlap(layout.megatron, **checked)
        return
    with pytest.raises(UserError, match=said):
        check_tp_overlap(layout.megatron, **checked)


@pytest.mark.parametrize("switches", [None, {}, {"tp_overlap": False}, {"tp_overlap": True}])
def test_trainer_processes_see_the_hosts_other_gpus_only_with_the_overlap(monkeypatch, switches):
    monkeypatch.delenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", raising=False)
    config = {"parallel": {"device": "cuda", "megatron": {"override_mcore_model_config": switches}}}
    wanted = "1" if switches and switches["tp_overlap"] else None
    assert stage_env(config).get("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES") == wanted
