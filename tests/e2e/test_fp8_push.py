"""An engine with FP8 weights is compared with what the trainer quantises, bit by bit, over fused and sliced layers."""

import json
from pathlib import Path

import pytest
from forked_programs import lines_printed, started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LAYER = "model.layers.0"
NAMED = {
    "an element": f"{LAYER}.self_attn.v_proj.weight_fp8",
    "a scale": f"{LAYER}.mlp.gate_proj.weight_scale_inv",
    "an input's scale": f"{LAYER}.mlp.down_proj.weight_scale_inv",
    "gate and up swapped": f"{LAYER}.mlp.gate_proj.weight_fp8",
}


@pytest.fixture(scope="module")
def said(shared_template) -> dict[str, str | None]:
    program = Path(__file__).with_name("fp8_engine.py").read_text()
    (line,) = (text for text in lines_printed({"push": started(program)})["push"] if text.startswith("FOUND "))
    return json.loads(line.removeprefix("FOUND "))


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_a_push_leaves_in_the_engine_is_what_the_trainer_quantises(said, ranks):
    assert said[f"all on {ranks}"] is None
    assert said[f"tied on {ranks}"] is None


@pytest.mark.parametrize("case", ["an element on 1", "a scale on 1", "an input's scale on 1", "gate and up swapped"])
def test_what_differs_is_named(said, case):
    assert said[case].startswith(f"{NAMED[case.removesuffix(' on 1')]} in the engine is not what the trainer exported")


@pytest.mark.parametrize("case", ["an element", "a scale", "an input's scale"])
def test_on_the_last_rank_too(said, case):
    # Its first scale of gate and up is the second half's of gate.
    assert said[f"{case} on 2"].startswith(f"{NAMED[case]} in the engine is not what the trainer exported")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_not_quantised_is_compared_as_it_is(said, ranks):
    wanted = "model.norm.weight in the engine is not what" if ranks == 1 else "different copies of model.norm.weight"
    assert wanted in said[f"a norm on {ranks}"]


def test_an_engine_that_quantises_unasked_is_found(said):
    assert said["exported as for bfloat16"] == (
        f"the engine holds a tensor {LAYER}.self_attn.q_proj.weight_fp8, which the trainer did not export"
    )
