"""The arithmetic of parallel layouts and batches. The shapes are those of real models."""

from pathlib import Path

import pytest
from refused import refusal

from retool_mcore.planner import parallel
from retool_mcore.planner.shape import Model


def model(heads=40, kv_heads=8, layers=64, vocab=152064) -> Model:
    """Qwen2.5-32B unless told otherwise."""
    return Model(Path("."), heads, kv_heads, layers, vocab, max_positions=32768, parameters=32_800_000_000)


LAYOUT = {"nodes": 2, "gpus_per_node": 8, "tp": 8, "pp": 2, "sequence_parallel": True}


@pytest.mark.parametrize(
    ("changes", "dp"),
    [
        ({}, 1),
        ({"tp": 4, "pp": 4}, 1),
        ({"tp": 4, "pp": 1}, 4),
        ({"tp": 4, "pp": 1, "cp": 2}, 2),
        ({"vpp": 4}, 1),
        ({"tp": 1, "pp": 1, "sequence_parallel": False}, 16),
    ],
)
def test_layout_gives_the_data_parallel_size(changes, dp):
    assert parallel.check_layout(model(), **(LAYOUT | changes)) == dp


@pytest.mark.parametrize(
    ("changes", "shape", "words"),
    [
        ({"tp": 3}, {}, ["parallel.tp=3", "40 attention heads", "1, 2, 4, 5, 8"]),
        ({"tp": 5, "pp": 1}, {}, ["parallel.tp=5", "8 key/value heads", "1, 2, 4, 8."]),
        ({"tp": 2}, {"vocab": 151}, ["parallel.tp=2", "vocabulary of 151"]),
        ({"pp": 3}, {}, ["parallel.pp=3", "64 layers"]),
        ({"pp": 4}, {}, ["= 32", "16 devices", "parallel.nodes=2", "parallel.gpus_per_node=8"]),
        ({"tp": 1}, {}, ["parallel.sequence_parallel"]),
        ({"cp": 2}, {}, ["context_parallel_size=2", "= 32", "16 devices"]),
        ({"vpp": 3}, {}, ["virtual_pipeline_model_parallel_size=3", "32 layers"]),
        ({"pp": 1, "vpp": 2}, {}, ["virtual_pipeline_model_parallel_size=2", "parallel.pp > 1"]),
    ],
)
def test_layout_refuses(changes, shape, words):
    message = refusal(parallel.check_layout, model(**shape), **(LAYOUT | changes))
    assert all(word in message for word in words), message


def test_more_ranks_than_key_value_heads_replicate_them():
    qwen_7b = model(heads=28, kv_heads=4, layers=28)
    assert parallel.check_layout(qwen_7b, nodes=1, gpus_per_node=2, tp=2, pp=1, sequence_parallel=True) == 1
    few = model(heads=16, kv_heads=2)
    assert parallel.check_layout(few, nodes=1, gpus_per_node=8, tp=8, pp=1, sequence_parallel=True) == 1
    odd = model(heads=12, kv_heads=3)
    assert "3 key/value heads" in refusal(parallel.check_tensor_parallel, odd, size=4, key="parallel.tp")


def test_an_engine_replica_fits_in_a_node():
    parallel.check_rollout_layout(model(), gpus_per_node=8, rollout_tp=4)
    message = refusal(parallel.check_rollout_layout, model(), gpus_per_node=4, rollout_tp=8)
    assert "parallel.rollout_tp=8" in message and "parallel.gpus_per_node=4" in message
    assert "parallel.rollout_tp=16" in refusal(parallel.check_rollout_layout, model(), gpus_per_node=16, rollout_tp=16)


def test_the_policys_type_is_one_that_the_device_trains():
    parallel.check_dtype(device="cuda", dtype="bfloat16")
    parallel.check_dtype(device="cpu", dtype="float32")
    assert "model.dtype=float32" in refusal(parallel.check_dtype, device="cuda", dtype="float32")
    assert "model.dtype=int8" in refusal(parallel.check_dtype, device="cpu", dtype="int8")


def test_batches_are_multiples_of_the_data_parallel_ranks():
    parallel.check_sft_batch(batch=32, dp=4)
    assert "train.batch=30" in refusal(parallel.check_sft_batch, batch=30, dp=4)
    parallel.check_rl_batch(batch=512, mini_batch=64, n=16, dp=16)
    parallel.check_rl_batch(batch=3, mini_batch=1, n=4, dp=4)  # trajectories are split, not prompts
    assert "18 trajectories" in refusal(parallel.check_rl_batch, batch=6, mini_batch=4, n=3, dp=4)
    assert "train.mini_batch=2" in refusal(parallel.check_rl_batch, batch=4, mini_batch=2, n=3, dp=4)


LENGTHS = {
    "max_prompt_tokens": 2048,
    "max_response_tokens": 16384,
    "max_positions": 18432,
}


def test_lengths_that_just_fit_pass():
    parallel.check_lengths(**LENGTHS)


def test_lengths_refuse():
    message = refusal(parallel.check_lengths, **(LENGTHS | {"max_positions": 18431}))
    assert "= 18432" in message and "18431 positions" in message


def test_a_longest_sequence_fits_a_micro_batch_and_an_engine_step():
    parallel.check_micro_batch(longest=8192, micro_batch_tokens=8192)
    assert "parallel.micro_batch_tokens=8191" in refusal(
        parallel.check_micro_batch, longest=8192, micro_batch_tokens=8191
    )
    parallel.check_micro_batch(longest=8192, micro_batch_tokens=4096, cp=2)
    assert "4095 on 2 context-parallel ranks" in refusal(
        parallel.check_micro_batch, longest=8192, micro_batch_tokens=4095, cp=2
    )
    parallel.check_engine_batch(longest=224, max_num_batched_tokens=200, chunked_prefill=True)
    assert "max_num_batched_tokens=200" in refusal(
        parallel.check_engine_batch, longest=224, max_num_batched_tokens=200, chunked_prefill=False
    )
    assert "train.max_length=300" in refusal(parallel.check_sft_length, max_length=300, max_positions=299)


def test_warm_up_ends_before_the_run():
    parallel.check_schedule(steps=10, warmup_steps=9)
    parallel.check_schedule(steps=1, warmup_steps=0)
    assert "train.warmup_steps=10" in refusal(parallel.check_schedule, steps=10, warmup_steps=10)


def test_experts_are_dealt_evenly_or_refused():
    moe = Model(Path("."), 32, 4, 48, 151936, max_positions=32768, parameters=30_000_000_000, experts=128)
    layout = {"nodes": 1, "gpus_per_node": 8, "tp": 2, "pp": 1, "sequence_parallel": True}
    assert parallel.check_layout(moe, **layout, ep=8) == 4
    for ep, changes, words in (
        (3, {}, ["parallel.ep=3", "128 experts"]),
        (16, {}, ["parallel.ep=16", "8 devices"]),
        (0, {}, ["parallel.ep=0"]),
        (2, {"sequence_parallel": False}, ["sequence_parallel=true"]),
    ):
        message = refusal(parallel.check_layout, moe, **(layout | changes), ep=ep)
        assert all(word in message for word in words), message
    assert "0 experts" in refusal(parallel.check_layout, model(), **LAYOUT, ep=2)


@pytest.mark.parametrize(
    ("backend", "capability", "installed", "words"),
    [
        ("fused", 9.0, False, None),
        ("fused", None, None, None),
        (
            "fused",
            8.0,
            True,
            "attention_backend=fused has no kernel for packed sequences on GPUs of compute capability 8",
        ),
        ("flash", 8.0, True, None),
        ("flash", 8.0, None, None),
        ("flash", 8.0, False, "attention_backend=flash needs flash-attn"),
        ("unfused", 8.0, False, None),
    ],
)
def test_packed_sequences_have_a_kernel_or_are_refused(backend, capability, installed, words):
    known = {"capability": capability, "installed": installed}
    if words is None:
        parallel.check_attention(backend, **known)
    else:
        assert words in refusal(parallel.check_attention, backend, **known)
