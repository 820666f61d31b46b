"""Adapters are refused, in one sentence, where the stack cannot train them or was not seen to."""

import json

import pytest

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.planner.shape import Model
from retool_mcore.preflight import run
from retool_mcore.runner import launch
from retool_mcore.state import checkpoints

TRANSFORMER = "parallel.megatron.override_transformer_config"
REFUSED = [
    (["parallel=cpu-tp2"], 0, "Megatron-Bridge builds adapters, and parallel.megatron.vanilla_mbridge=true"),
    (["parallel.tp=3"], 0, "Megatron-Bridge cuts it over parallel.tp=3 ranks"),
    ([], 8, "adapters of experts were not tried"),
    (["recipe.advantage=gae"], 0, "adapters with a critic were not tried"),
    ([f"{TRANSFORMER}.recompute_granularity=selective"], 0, "under recompute_granularity=selective the first layer's"),
    ([f"{TRANSFORMER}.fp8=e4m3"], 0, "adapters of FP8 weights were not tried"),
]


def model(tmp_path, experts=0):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    return Model(tmp_path, heads=12, kv_heads=4, layers=2, vocab=384, max_positions=512, parameters=1, experts=experts)


@pytest.mark.parametrize(("words", "experts", "sentence"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(words, experts, sentence, tmp_path):
    config = compose("rl", ["parallel=1gpu", "model.lora.rank=16", *words])
    with pytest.raises(UserError) as caught:
        run.check_trainer_layout(config, model(tmp_path, experts))
    said = str(caught.value)
    assert said.startswith(f"model.lora.rank=16: {sentence}") and said.endswith(", or model.lora.rank=0.")


@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_accepted_on_gpus_and_all_weights_everywhere(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check_attention", lambda layout: None)
    model_here = model(tmp_path)
    given = ["parallel=1gpu", "model.dtype=bfloat16"]
    assert run.check_trainer_layout(compose(stage, [*given, "model.lora.rank=16"]), model_here) == 1
    assert run.check_trainer_layout(compose(stage), model(tmp_path, experts=0)) == 1
    # Neither evaluation nor export trains.
    assert run.check_trainer_layout(compose("export", ["model.lora.rank=3"]), model_here) == 1


@pytest.mark.parametrize("mode", ["R2", "R3"])
def test_router_replay_is_of_experts(mode, tmp_path):
    config = compose("rl", ["parallel.gpus_per_node=2", f"parallel.megatron.router_replay.mode={mode}"])
    with pytest.raises(UserError, match=rf"router_replay.mode={mode} is of experts, and .* has none"):
        run.check_trainer_layout(config, model(tmp_path))
    assert run.check_trainer_layout(config, model(tmp_path, experts=4)) == 1


@pytest.mark.parametrize(
    ("trained", "words", "refused"),
    [
        ({"rank": 8, "alpha": 32, "targets": ["linear_qkv"]}, [8, "[linear_qkv]"], False),
        ({"rank": 8, "alpha": 32, "targets": ["linear_qkv"]}, [16, "[linear_qkv]"], True),
        ({"rank": 8, "alpha": 32, "targets": ["linear_qkv"]}, [8, "[linear_proj]"], True),
        ({"rank": 8, "alpha": 32, "targets": ["linear_qkv"]}, [0, "[linear_qkv]"], True),
        (None, [8, "[linear_qkv]"], True),
        (None, [0, "[linear_qkv]"], False),
    ],
)
def test_a_run_goes_on_with_the_adapters_that_it_began_with(trained, words, refused, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "check", lambda stage, config: None)
    lora = [f"model.lora.rank={words[0]}", f"model.lora.targets={words[1]}"]
    config = compose("rl", [f"runs_dir={tmp_path}", "name=t", "parallel=1gpu", *lora])
    launch.preflight("rl", config)  # nothing is there yet
    step = tmp_path / "t" / "rl" / "checkpoints" / "global_step_1"
    file = step / "actor" / "model" / "huggingface" / checkpoints.LORA
    file.parent.mkdir(parents=True)
    if trained:
        file.write_text(json.dumps({"lora": trained}))
    checkpoints.mark_complete(step)
    if not refused:
        return launch.preflight("rl", config)
    with pytest.raises(UserError, match="global_step_1 is of model.lora=.* go on with the same, or take another name"):
        launch.preflight("rl", config)
