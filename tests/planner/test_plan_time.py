"""Time: its parts, what makes a step slower, and the fit of constants to measured rows."""

import json
from dataclasses import replace

import pytest

from retool_mcore.errors import UserError
from retool_mcore.planner import MACHINES, SHAPES, Batch, Layout
from retool_mcore.planner.flops import model_flops
from retool_mcore.planner.machine import Constants
from retool_mcore.planner.rollout import Rollout, fit, generation_seconds, lacks, resident
from retool_mcore.planner.time import log_prob_seconds, seconds
from tests.support.calibration import FITTED, Case, calibrate, case, covered, predict, read

H200 = MACHINES["H200-141"]
SHAPE = SHAPES["qwen2.5-7b"]
BASE = Layout(tp=2, pp=2, dp=2, micro_batch_tokens=8192)
BATCH = Batch((2048,) * 64)


def test_the_parts_are_the_whole_and_no_gpu_beats_its_peak():
    took = seconds(SHAPE, BASE, BATCH, H200)
    assert took.step == pytest.approx(sum(took.parts.values()))
    assert model_flops(SHAPE, BATCH.lengths) / took.step / BASE.world < H200.constants.matmul * H200.bf16
    assert log_prob_seconds(SHAPE, BASE, BATCH, H200) < took.step / 2


def test_the_bubble_is_p_minus_one_over_v_m():
    micro_batches = BATCH.micro_batches(BASE).count
    plain, interleaved = (seconds(SHAPE, replace(BASE, vpp=vpp), BATCH, H200).parts for vpp in (1, 2))

    def busy(parts):
        return sum(parts[name] for name in parts if name not in ("bubble", "data parallel", "optimizer", "host"))

    assert plain["bubble"] == pytest.approx(busy(plain) / micro_batches)
    assert interleaved["bubble"] == pytest.approx(busy(interleaved) / micro_batches / 2)
    assert seconds(SHAPE, replace(BASE, pp=1), BATCH, H200).parts["bubble"] == 0


@pytest.mark.parametrize(
    ("slower", "quicker"),
    [
        ({"recompute": "full"}, {"recompute": "mlp"}),
        ({"recompute": "mlp"}, {"recompute": "none"}),
        ({"recompute": "selective"}, {"recompute": "none"}),
        ({"optimizer_offload": True}, {"optimizer_offload": False}),
        ({"fused_swiglu": False}, {"fused_swiglu": True}),
        ({"fused_rope": False}, {"fused_rope": True}),
        ({"fused_wgrad": False}, {"fused_wgrad": True}),
        ({"fused_log_probs": False}, {"fused_log_probs": "in_place"}),
        ({"overlap": False}, {"overlap": True}),
        ({"pp": 1, "tp": 8, "dp": 1}, {"pp": 1, "tp": 1, "dp": 8}),
        ({"pp": 1, "micro_batch_tokens": 2048}, {"pp": 1, "micro_batch_tokens": 8192}),
    ],
)
def test_what_takes_longer(slower, quicker):
    long, short = (predict(SHAPE, replace(BASE, **changes), BATCH, H200).step_seconds for changes in (slower, quicker))
    assert long > short


def test_between_nodes_gradients_take_the_network():
    layout = Layout(tp=8, dp=2, micro_batch_tokens=8192)
    within = seconds(SHAPE, layout, BATCH, replace(H200, gpus_per_node=16)).parts["data parallel"]
    between = seconds(SHAPE, layout, BATCH, H200).parts["data parallel"]
    assert between / within == pytest.approx(
        H200.nvlink * H200.constants.nvlink / (H200.network * H200.constants.network)
    )


def test_stock_verls_generation_was_measured_at_14_and_16_seconds():
    batch = Batch((2048,) * 256)
    seven = generation_seconds(SHAPE, Rollout(1, 0.5, 10**9), batch, H200, world=4)
    assert seven == pytest.approx(14.2, rel=0.15)
    half = replace(SHAPES["qwen2.5-32b"], layers=32)
    took = generation_seconds(half, Rollout(2, 0.5, 10**9), Batch((2048,) * 128), H200, world=4)
    assert took == pytest.approx(16.2, rel=0.15)


def test_a_small_cache_makes_sequences_wait():
    batch = Batch((2048,) * 256)
    times = [generation_seconds(SHAPE, Rollout(1, 0.5, tokens), batch, H200, world=4) for tokens in (10**9, 2048 * 8)]
    assert times[1] > 3 * times[0]


def test_offload_makes_room_for_the_engine():
    held = predict(SHAPE, BASE, BATCH, H200).memory
    machine = MACHINES["H100-80"]
    layouts = [replace(BASE, param_offload=off, optimizer_offload=off) for off in (False, True)]
    kept, gone = (fit(SHAPE, machine, 1, resident(SHAPE, layout, held)) for layout in layouts)
    assert gone.utilisation > kept.utilisation and gone.cache_tokens > kept.cache_tokens
    left = resident(SHAPE, layouts[1], held)
    assert lacks(SHAPE, layouts[1], machine, gone, left, 2048) is None
    assert "cache holds" in lacks(SHAPE, layouts[1], machine, gone, left, gone.cache_tokens)
    assert "trainer leaves" in lacks(SHAPE, layouts[0], machine, gone, resident(SHAPE, layouts[0], held), 2048)


def test_other_models_that_stay_take_room_from_the_engine():
    held = predict(SHAPE, BASE, BATCH, H200).memory
    alone, both = resident(SHAPE, BASE, held), resident(SHAPE, BASE, held, ("critic", "reference"))
    moved = replace(BASE, param_offload=True, optimizer_offload=True)
    assert both > 1.9 * alone and resident(SHAPE, moved, held, ("critic", "reference")) == held.outside


def test_decoding_many_sequences_at_once_is_bound_by_their_products():
    engine = Rollout(1, 0.9, 10**9, max_num_seqs=4096)
    few, many = (generation_seconds(SHAPE, engine, Batch((256,) * count), H200, world=1) for count in (8, 4096))
    products = 2 * 7e9 * 256 * 4096 / (H200.bf16 * H200.constants.matmul)
    assert many > products > 3 * few


def made_up(constants: Constants) -> list[Case]:
    cases = []
    for shape, length in (("qwen2.5-1.5b", 512), ("qwen2.5-7b", 2048), ("qwen2.5-7b", 16384), ("qwen2.5-32b", 8192)):
        layout, batch = Layout(tp=4, dp=2), Batch((length,) * (131072 // length))
        made = Case("", shape, SHAPES[shape], layout, batch, H200, None, None)
        cases.append(replace(made, seconds=made.predict(constants).step_seconds))
    return cases


def test_a_fit_finds_the_constants_that_made_the_rows():
    truth = Constants(matmul=0.55, attention=0.3, step_s=0.2)
    found = calibrate(made_up(truth))
    assert [getattr(found, name) for name in FITTED] == pytest.approx([0.55, 0.3, 0.2], rel=0.02)


def test_too_few_rows_or_too_many_constants_are_refused():
    cases = made_up(Constants())
    with pytest.raises(UserError, match="2 timed rows do not fix 3"):
        calibrate(cases[:2])
    with pytest.raises(UserError, match="4 constants"):
        calibrate(cases, names=(*FITTED, "nvlink"))


ROW = {
    "id": "tp2/0",
    "shape": "qwen2.5-32b",
    "layers": 14,
    "layout": {"tp": 2, "pp": 1, "cp": 1, "dp": 1, "sequence_parallel": True, "micro_batch_tokens": 16384},
    "lengths": {"count": 8, "tokens": 4096},
    "gpu": "H200",
    "step_s": 1.7,
    "peak_memory_gb": 125.0,
}


def test_a_row_of_the_training_benchmark_is_read(tmp_path):
    engine = {
        "override_transformer_config": {"bias_activation_fusion": True},
        "override_mcore_model_config": {"fused_log_probs": True},
    }
    failed, eight_bit = ROW | {"error": "out of memory"}, {"override_transformer_config": {"fp8": "hybrid"}}
    rows = [ROW, ROW | {"settings": {"engine": engine}}, failed, ROW | {"settings": {"engine": eight_bit}}]
    (tmp_path / "rows.json").write_text(json.dumps({"rows": rows}))
    stock, ours = read(tmp_path / "rows.json")
    assert stock.shape.layers == 14 and stock.memory == 125e9 and stock.seconds == 1.7 and stock.machine is H200
    assert not stock.layout.fused_swiglu and not stock.layout.fused_log_probs
    assert ours.layout.fused_swiglu and ours.layout.fused_log_probs == "in_place" and not ours.layout.fused_rope
    assert [covered(row) for row in rows] == [True, True, False, False]
    spread = case(ROW | {"lengths": {"spread": [12, 16384, 5400]}})
    assert len(spread.batch.lengths) == 12 and spread.batch.longest == 16384


def test_what_is_no_file_of_rows_is_refused(tmp_path):
    (tmp_path / "rows.json").write_text("[]")
    with pytest.raises(UserError, match="no file of measured rows"):
        read(tmp_path / "rows.json")
    with pytest.raises(UserError, match="'B200', of which"):
        case(ROW | {"gpu": "B200"})
