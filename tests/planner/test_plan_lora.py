"""Adapters alone have gradients and Adam's state: the planner's numbers of a model with LoRA."""

from collections import Counter
from dataclasses import replace

import pytest

from retool_mcore.errors import UserError
from retool_mcore.planner import time
from retool_mcore.planner.layout import Batch, Layout
from retool_mcore.planner.machine import MACHINES
from retool_mcore.planner.memory import memory, models, stage_parameters, trained_parameters
from retool_mcore.planner.parallel import check_layout
from retool_mcore.planner.search import Problem, candidates
from retool_mcore.planner.shape import SHAPES

ALL = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
FULL = SHAPES["qwen2.5-7b"]
LORA = replace(FULL, lora=16, lora_targets=ALL)
BATCH = Batch((4096,) * 64)


def test_parameters_of_the_adapters():
    # Qwen2.5-7B by hand: q 3584, k and v 512 each, MLP 18944; 28 layers of rank 16.
    widths = (3584 + 4608) + (3584 + 3584) + (3584 + 2 * 18944) + (18944 + 3584)
    assert LORA.adapter_parameters == 16 * widths
    assert trained_parameters(LORA, Layout(), 0) == 28 * 16 * widths
    assert trained_parameters(LORA, Layout(tp=2, pp=2), 0) == 28 * 16 * widths / 4
    assert replace(LORA, lora_targets=("linear_proj",)).adapter_parameters == 16 * 7168
    assert LORA.parameters == FULL.parameters and FULL.adapter_parameters == 0


@pytest.mark.parametrize("dp", [1, 2])
def test_gradients_and_adam_are_the_adapters_alone(dp):
    layout = Layout(tp=2, dp=dp)
    whole, adapters = stage_parameters(FULL, layout, 0), trained_parameters(LORA, layout, 0)
    found = models(LORA, layout, 0)
    assert found["policy"] == {
        "weights": pytest.approx(2 * (whole + adapters)),
        "gradients": pytest.approx(4 * adapters),
        "optimizer": pytest.approx(12 * adapters / dp),
    }
    assert found["reference"]["weights"] == 0 and models(FULL, layout, 0)["reference"]["weights"] == 2 * whole
    saved = memory(FULL, layout, BATCH).peak - memory(LORA, layout, BATCH).peak
    assert saved == pytest.approx((4 + 12 / dp) * whole - (2 + 4 + 12 / dp) * adapters)


def test_an_update_leaves_the_weights_gradients_out():
    machine, layout = MACHINES["H100-80"], Layout(tp=2, dp=2)
    full, lora = (time.seconds(shape, layout, BATCH, machine).parts for shape in (FULL, LORA))
    assert 2 / 3 < lora["products"] / full["products"] < 0.8  # two passes of three, and the adapters'
    for part in ("weight gradients", "data parallel", "optimizer"):
        assert lora[part] < 0.02 * full[part], part


def test_the_rank_is_cut_over_tensor_parallel_ranks_and_selective_recomputation_left_out():
    with pytest.raises(UserError, match=r"parallel.tp=4 does not divide the adapters' rank model.lora.rank=2"):
        check_layout(
            replace(FULL, lora=2, lora_targets=ALL), nodes=1, gpus_per_node=4, tp=4, pp=1, sequence_parallel=True
        )
    problem = Problem(replace(LORA, lora=2), 1, MACHINES["H100-80"], BATCH, False)
    refused: Counter[str] = Counter()
    found = list(candidates(problem, refused))
    assert {layout.recompute for layout in found} == {"none", "full"} and max(layout.tp for layout in found) == 2


def test_a_stage_that_does_not_train_has_none():
    config = {"model": {"lora": {"rank": 8, "targets": list(ALL)}}}
    assert FULL.adapted(config) == FULL and FULL.adapted(config | {"train": {}}).lora == 8
