"""Shapes and FLOPs: exact counts, against transformers' own models and small cases by hand."""

import json
from dataclasses import replace

import pytest

from retool_mcore.errors import UserError
from retool_mcore.planner.flops import attention_pairs, forward_flops, model_flops
from retool_mcore.planner.shape import SHAPES, Shape, named

SMALL = Shape(layers=3, hidden=8, ffn=16, heads=4, kv_heads=2, head_dim=2, vocab=32, tied=False)


def hub_config(shape: Shape, family: str = "qwen2") -> dict:
    return {
        "model_type": family,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": shape.tied,
    }


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("qwen2.5-1.5b", 1_543_714_304),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-32b", 32_763_876_352),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-32b", 32_762_123_264),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama3.1-8b", 8_030_261_248),
    ],
)
def test_the_named_shapes_have_the_published_numbers_of_parameters(name, parameters):
    assert SHAPES[name].parameters == parameters


@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral", "qwen3", "qwen3_moe"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_equal_those_of_transformers_model(tmp_path, family, tied):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 4}
    config = hub_config(SMALL, family) | {"tie_word_embeddings": tied} | experts
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path))
    expected = sum(parameter.numel() for parameter in model.parameters())
    assert Shape.from_hf(tmp_path).parameters == expected
    model.config.save_pretrained(tmp_path)  # what a stage writes has other names than the hub's
    assert Shape.from_hf(tmp_path).parameters == expected


def test_a_folder_is_read_and_layers_can_be_changed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(hub_config(SMALL)))
    assert named(str(tmp_path)) == SMALL
    assert replace(SMALL, layers=5).parameters - SMALL.parameters == 2 * SMALL.layer_parameters


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"model_type": "mixtral"}, "expected qwen2"),
        ({"model_type": "qwen3_moe"}, "lacks moe_intermediate_size, num_experts"),
        ({"num_hidden_layers": 0}, "layers is 0"),
        ({"hidden_size": "wide"}, "hidden is 'wide'"),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(tmp_path, change, part):
    config = hub_config(SMALL) | {"head_dim": 2} | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=part):
        Shape.from_hf(tmp_path)


def test_missing_folders_files_and_keys_are_named(tmp_path):
    with pytest.raises(UserError, match="neither a known shape"):
        named("qwen9-900b")
    with pytest.raises(UserError, match="no config.json"):
        named(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "vocab_size": 32}))
    with pytest.raises(UserError, match="lacks num_hidden_layers, hidden_size"):
        named(str(tmp_path))


def test_flops_of_a_small_case_by_hand():
    # A layer's matrices: q 8x8, k 8x4, v 8x4, o 8x8, gate, up and down 8x16 each; the output layer 8x32.
    matrices = 3 * (64 + 32 + 32 + 64 + 3 * 128) + 256
    # Sequences of 3 and 1 tokens: 1 + 2 + 3 and 1 pairs, each 2 x 8 multiply-adds for the scores and for the values.
    attention = 3 * (6 + 1) * (2 * 2 * 8)
    assert forward_flops(SMALL, [3, 1]) == 4 * 2 * matrices + attention
    assert model_flops(SMALL, [3, 1]) == 3 * (4 * 2 * matrices + attention)


def test_attention_is_over_each_sequence_alone():
    assert attention_pairs([4, 4]) == 20
    assert attention_pairs([8]) == 36
    assert model_flops(SMALL, [8]) > model_flops(SMALL, [4, 4])


def test_model_flops_are_six_a_weight_and_token_without_attention():
    shape = SHAPES["qwen2.5-32b"]
    multiplied = shape.layers * shape.layer_matrices + shape.vocab * shape.hidden
    assert model_flops(shape, [1]) == pytest.approx(6 * multiplied, rel=1e-4)
    assert multiplied == pytest.approx(shape.parameters - shape.embedding_parameters, rel=1e-3)


def test_of_experts_only_those_that_work_are_multiplied():
    shape = SHAPES["qwen3-30b-a3b"]
    assert shape.layer_parameters - shape.layer_matrices == pytest.approx(120 * shape.mlp, rel=1e-3)
    active = shape.layers * shape.layer_matrices + shape.vocab * shape.hidden
    assert active / 1e9 == pytest.approx(3.0, rel=0.05)  # the name's A3B, without the embedding's look-up


def test_qwen3_has_heads_of_128_where_config_json_names_no_size(tmp_path):
    config = hub_config(SMALL) | {"model_type": "qwen3"}
    config.pop("head_dim", None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Shape.from_hf(tmp_path).head_dim == 128
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "qwen2"}))
    assert Shape.from_hf(tmp_path).head_dim == SMALL.hidden // SMALL.heads
