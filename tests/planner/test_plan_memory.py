"""Memory: measured peaks, how it moves with the layout, refused inputs."""

from dataclasses import replace

import pytest

from retool_mcore.errors import UserError
from retool_mcore.planner import MACHINES, SHAPES, Batch, Layout
from retool_mcore.planner.memory import ADAM, BF16, FP32, GIB, layers_in_flight, memory, models, stage_parameters
from tests.support.calibration import predict

BIG = SHAPES["qwen2.5-32b"]
BASE = Layout(tp=4, pp=2, dp=2, micro_batch_tokens=8192)
BATCH = Batch((2048,) * 64)


@pytest.mark.parametrize(
    ("shape", "layers", "layout", "sequences", "measured"),
    [
        ("qwen2.5-7b", 28, Layout(tp=2, dp=2), 256, 96),
        ("qwen2.5-32b", 32, Layout(tp=4), 128, 114),
    ],
)
def test_peaks_that_were_measured_on_h200(shape, layers, layout, sequences, measured):
    held = memory(replace(SHAPES[shape], layers=layers), layout, Batch((2048 + 24,) * sequences))
    assert held.peak / GIB == pytest.approx(measured, rel=0.03)


def test_the_parts_of_a_state_are_18_bytes_a_parameter_without_data_parallelism():
    held = memory(BIG, replace(BASE, dp=1), BATCH)
    states = sum(held.parts[name] for name in ("weights", "gradients", "optimizer"))
    assert states == pytest.approx(18 * stage_parameters(BIG, BASE, held.stage))
    assert held.peak == sum(held.parts.values())
    assert held.gpu > held.peak + held.outside


@pytest.mark.parametrize("dp", [1, 2, 8])
def test_the_optimizer_is_sharded_over_data_parallel_ranks_and_nothing_else_is(dp):
    held = memory(BIG, replace(BASE, dp=dp), BATCH)
    parameters = stage_parameters(BIG, BASE, held.stage)
    assert held.parts["optimizer"] == pytest.approx(ADAM * parameters / dp)
    assert held.parts["weights"] == pytest.approx(BF16 * parameters)
    assert held.parts["gradients"] == pytest.approx(FP32 * parameters)


def test_stages_hold_all_parameters_together():
    whole = sum(stage_parameters(BIG, Layout(pp=8), stage) for stage in range(8))
    assert whole == BIG.parameters
    small = SHAPES["qwen2.5-1.5b"]
    assert stage_parameters(small, Layout(), 0) == small.parameters
    tied_twice = sum(stage_parameters(small, Layout(pp=2), stage) for stage in range(2))
    assert tied_twice == small.parameters + small.embedding_parameters


@pytest.mark.parametrize(
    ("larger", "smaller"),
    [
        ({"recompute": "none"}, {"recompute": "mlp"}),
        ({"recompute": "mlp"}, {"recompute": "full"}),
        ({"recompute": "selective"}, {"recompute": "none"}),  # the attention core keeps nothing worth recomputing
        ({"micro_batch_tokens": 16384}, {"micro_batch_tokens": 8192}),
        ({"tp": 4}, {"tp": 8}),
        ({"sequence_parallel": False}, {"sequence_parallel": True}),
        ({"fused_swiglu": False}, {"fused_swiglu": True}),
        ({"fused_rope": False}, {"fused_rope": True}),
        ({"pp": 1}, {"pp": 2}),
        ({"vpp": 2}, {"vpp": 1}),
        ({"cp": 1}, {"cp": 2, "micro_batch_tokens": 4096}),
    ],
)
def test_what_takes_less_memory(larger, smaller):
    assert memory(BIG, replace(BASE, **larger), BATCH).peak > memory(BIG, replace(BASE, **smaller), BATCH).peak


def test_logits_are_what_the_fused_kernel_saves():
    layout = Layout(tp=2, dp=2, recompute="full")
    whole = memory(SHAPES["qwen2.5-7b"], layout, BATCH)
    fused = memory(SHAPES["qwen2.5-7b"], replace(layout, fused_log_probs=True), BATCH)
    tokens = BATCH.micro_batches(layout).largest
    assert whole.parts["logits"] >= 8 * tokens * SHAPES["qwen2.5-7b"].vocab / 2
    assert fused.peak < whole.peak - 4 * GIB


def test_micro_batches_in_flight_follow_1f1b():
    layout = Layout(tp=1, pp=4, dp=1)
    assert [layers_in_flight(BIG, layout, stage, 100) for stage in range(4)] == [64, 48, 32, 16]
    assert layers_in_flight(BIG, layout, 0, 2) == 32
    # Interleaving on the first stage: L (1 + (p - 1) / (p v)), Korthikanti et al. 2022, section 4.2.3.
    interleaved = replace(layout, vpp=2)
    assert layers_in_flight(BIG, interleaved, 0, 100) == pytest.approx(64 * (1 + 3 / 8))


def test_verl_fills_micro_batches_evenly_and_never_beyond_the_limit():
    batch = Batch.spread(300, 4096, 1500)
    for limit in (4096, 5000, 9000, 10**9):
        layout = Layout(dp=2, micro_batch_tokens=limit)
        found = batch.micro_batches(layout)
        assert found.largest <= limit
        assert found.count * limit >= batch.share(2).tokens
    grouped = batch.micro_batches(Layout(pp=4, vpp=2, dp=2, micro_batch_tokens=5000))
    assert grouped.count % 4 == 0


def test_a_spread_has_its_mean_and_its_longest():
    batch = Batch.spread(1000, 18432, 6144)
    assert sum(batch.lengths) / 1000 == pytest.approx(6144, rel=0.01)
    assert batch.longest == 18432
    assert max(batch.lengths) <= 18432


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Layout(tp=0), "tp is 0"),
        (lambda: Layout(dp=True), "dp is True"),
        (lambda: Layout(recompute="most"), "recompute is 'most'"),
        (lambda: Layout(vpp=2), "needs pp > 1"),
        (lambda: Batch(()), "at least one sequence"),
        (lambda: Batch((5, 0)), "1 token or more"),
        (lambda: Batch.spread(10, 100, 200), "is impossible"),
        (lambda: memory(BIG, Layout(pp=3), BATCH), "does not divide"),
        (lambda: memory(BIG, Layout(dp=128), BATCH), "not enough for 128"),
        (lambda: memory(BIG, Layout(micro_batch_tokens=1024), BATCH), "raise micro_batch_tokens"),
        (lambda: predict(BIG, Layout(pp=8, vpp=2, dp=16), [10] * 64, MACHINES["H100-80"]), "do not make 8"),
    ],
)
def test_what_cannot_be_is_refused(make, part):
    with pytest.raises(UserError, match=part):
        make()


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_experts_are_shared_by_expert_parallel_ranks_and_nothing_else_is(ep):
    shape = SHAPES["qwen3-30b-a3b"]
    layout = Layout(tp=2, dp=4, ep=ep, micro_batch_tokens=8192)
    experts = shape.layers * shape.experts * shape.mlp
    others = stage_parameters(replace(shape, experts=0, active=0), layout, 0) - shape.layers * shape.mlp / 2
    router = shape.layers * shape.experts * shape.hidden
    held = memory(shape, layout, BATCH)
    assert stage_parameters(shape, layout, 0) == pytest.approx(experts / ep + others + router)
    # Adam's shares: of experts over the ranks that hold the same ones, of all else over the data-parallel ranks.
    assert held.parts["optimizer"] == pytest.approx(ADAM * (experts / 8 + (others + router) / 4))


def test_a_models_bytes_follow_the_division_and_the_stage_and_no_switch():
    shape, layout = SHAPES["qwen2.5-32b"], Layout(tp=2, pp=4, dp=2)
    first, between = (models(shape, layout, stage)["policy"] for stage in (0, 1))
    assert first["weights"] - between["weights"] == pytest.approx(BF16 * shape.embedding_parameters / 2)
    assert models(shape, replace(layout, recompute="full", packed=True, micro_batch_tokens=512), 1)["policy"] == between
    for size in ("dp", "cp", "tp", "pp"):
        other = models(shape, replace(layout, **{size: 2 * getattr(layout, size)}), 1)["policy"]
        assert other["optimizer"] == pytest.approx(between["optimizer"] / 2, rel=1e-3), size  # norms are whole
