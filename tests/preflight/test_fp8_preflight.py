"""An engine with quantised weights is refused, in one sentence, where it would not start or could not be verified."""

import json
from pathlib import Path

import pytest

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.planner.shape import Model
from retool_mcore.preflight import machine
from retool_mcore.preflight.model import check_fp8

KEY = "verl.actor_rollout_ref.rollout.quantization"
SHAPE = {
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 6,
    "vocab_size": 384,
}
NARROW = (
    "needs a model whose width and each engine rank's queries, keys and MLP (here [{}], with parallel.rollout_tp={})"
)


def model(folder: Path, **other) -> Model:
    (folder / "config.json").write_text(json.dumps(SHAPE | other))
    return Model(folder, heads=4, kv_heads=2, layers=6, vocab=384, max_positions=512, parameters=1)


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    def of(*capabilities: float):
        monkeypatch.setattr(machine, "compute_capabilities", lambda: list(capabilities))

    of()
    return of


def config(*words: str, quantization: str = "fp8"):
    return compose("rl", ["parallel=1gpu", f"{KEY}={quantization}", *words])


@pytest.mark.parametrize("here", [[], [9.0, 9.0]])
def test_accepted_on_hopper_and_where_no_gpu_is(tmp_path, gpus, here):
    gpus(*here)
    check_fp8(config(), model(tmp_path))
    check_fp8(config(), model(tmp_path, hidden_size=896, intermediate_size=4864, num_attention_heads=14))  # of 64, 0.5B
    check_fp8(
        config("parallel.rollout_tp=4"),
        model(tmp_path, hidden_size=5120, intermediate_size=27648, num_attention_heads=40, num_key_value_heads=8),
    )  # 32B


def test_an_engine_that_is_not_quantised_may_be_anything(tmp_path, gpus):
    gpus(8.0)
    check_fp8(compose("rl", ["parallel=1gpu"]), model(tmp_path, hidden_size=200))
    check_fp8(compose("rl", ["parallel=cpu-tp2"]), model(tmp_path, model_type="other"))


@pytest.mark.parametrize(
    ("words", "here", "shape"),
    [
        (["parallel=cpu-tp2"], [], {}),
        ([], [8.9], {}),
        ([], [9.0, 8.0], {}),
        ([], [10.0], {}),
        (["model.lora.rank=8"], [9.0], {}),
        ([], [9.0], {"model_type": "other"}),
        (
            [],
            [9.0],
            {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256},
        ),
    ],
)
def test_refused_for_what_the_run_is(tmp_path, gpus, words, here, shape):
    gpus(*here)
    with pytest.raises(UserError, match=rf"{KEY}=fp8 cannot be used: .* dense model .* capability 9 \(H100, H200\)"):
        check_fp8(config(*words), model(tmp_path, **shape))


def test_another_quantisation_is_refused(tmp_path):
    with pytest.raises(UserError, match="quantization=torchao cannot be used: only fp8 can"):
        check_fp8(config(quantization="torchao"), model(tmp_path))


@pytest.mark.parametrize(
    ("shape", "tp", "sizes"),
    [
        ({"intermediate_size": 672}, 1, "256, 256, 128, 672"),
        ({"num_key_value_heads": 1}, 1, "256, 256, 64, 640"),
        ({"hidden_size": 320, "num_attention_heads": 5}, 1, "320, 320, 128, 640"),
        ({}, 2, "256, 128, 64, 320"),
        ({"num_key_value_heads": 4, "intermediate_size": 768}, 4, "256, 64, 64, 192"),
        ({"hidden_size": 128, "head_dim": 64}, 1, "128, 256, 128, 640"),
        ({"intermediate_size": 128}, 1, "256, 256, 128, 128"),
    ],
)
def test_refused_for_its_sizes(tmp_path, shape, tp, sizes):
    with pytest.raises(UserError) as caught:
        check_fp8(config(f"parallel.rollout_tp={tp}"), model(tmp_path, **shape))
    assert NARROW.format(sizes, tp) in str(caught.value)
