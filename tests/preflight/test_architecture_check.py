"""What a layout's bridge does not build is refused: families, scalings, windows, biases, towers, quantised weights."""

import json
import shutil
from pathlib import Path

import pytest
from families import FAMILIES, write_family
from refused import refusal

from retool_mcore.planner.shape import Model
from retool_mcore.preflight import architecture
from retool_mcore.preflight.architecture import check_architecture, decorated
from retool_mcore.preflight.model import check_rotary, read_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LAYOUTS = (True, False)  # vanilla_mbridge of CPU layouts, of GPU layouts


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("families")
    return {name: write_family(root / name, name, weights=False) for name in FAMILIES}


@pytest.fixture
def changed(folders, tmp_path):
    def change(family: str, **fields) -> Model:
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders[family], folder)
        config = json.loads((folder / "config.json").read_text()) | fields
        (folder / "config.json").write_text(json.dumps(config))
        return read_model(folder, weights=False)

    return change


@pytest.mark.parametrize("vanilla", LAYOUTS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_on_every_layout(changed, family, tied, vanilla):
    check_architecture(changed(family, tie_word_embeddings=tied), vanilla_mbridge=vanilla)


@pytest.mark.parametrize(
    ("family", "fields", "passes"),
    [
        ("llama3.1", {"rope_scaling": LLAMA3}, (True, True)),
        ("llama3.1", {"rope_scaling": None, "rope_parameters": LLAMA3 | {"rope_theta": 5e5}}, (True, True)),
        (
            "llama3.1",
            {"rope_scaling": {}, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            (True, True),
        ),
        ("llama3.1", {"rope_scaling": LLAMA3 | {"low_freq_factor": 2.0}}, (False, False)),
        ("llama3.1", {"rope_scaling": LLAMA3 | {"original_max_position_embeddings": 4096}}, (False, False)),
        ("qwen3", {"rope_scaling": LLAMA3}, (False, False)),
        ("qwen3", {"rope_scaling": YARN}, (False, True)),
        ("qwen3-moe", {"rope_scaling": YARN | {"beta_fast": 32, "beta_slow": 1}}, (False, True)),
        ("llama3.1", {"rope_scaling": None, "rope_parameters": YARN | {"rope_theta": 1e6}}, (False, True)),
        ("qwen3", {"rope_scaling": YARN | {"attention_factor": 1.5}}, (False, False)),
        ("mistral", {"rope_scaling": YARN}, (False, False)),
        ("llama3.1", {"rope_scaling": {"type": "linear", "factor": 8.0}}, (False, False)),
        ("llama3.1", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, (False, False)),
        ("r1-distill", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, (False, False)),
        ("r1-distill", {"rope_scaling": {"rope_type": "longrope", "long_factor": [2.0]}}, (False, False)),
        ("r1-distill", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}, (False, False)),
        ("qwen3", {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, (False, False)),
        ("qwen3", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, (False, False)),
    ],
)
def test_scalings_of_the_rotary_embedding(changed, family, fields, passes):
    model = changed(family, **fields)
    for vanilla, fits in zip(LAYOUTS, passes, strict=True):
        if fits:
            check_rotary(model, vanilla_mbridge=vanilla)
        else:
            message = refusal(check_rotary, model, vanilla_mbridge=vanilla)
            assert ("mbridge does not build" if vanilla else "Megatron-Bridge does not build") in message
            assert message == refusal(check_architecture, model, vanilla_mbridge=vanilla)


@pytest.mark.parametrize("vanilla", LAYOUTS)
@pytest.mark.parametrize(
    ("family", "fields", "words"),
    [
        ("qwen3", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised (gptq)"),
        ("qwen3", {"quantization_config": {"bits": 4}}, "quantised (unknown)"),
        ("llama3.1", {"vision_config": {"hidden_size": 32}}, "has a vision_config"),
        ("r1-distill", {"audio_config": {"hidden_size": 32}}, "has a audio_config"),
        ("qwen3", {"architectures": ["Qwen3ForSequenceClassification"]}, "Qwen3ForSequenceClassification, expected a"),
        ("qwen3", {"architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "expected a causal language model"),
        ("qwen3", {"architectures": "Qwen3ForCausalLM"}, "expected a list of names"),
        ("r1-distill", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 1}, "over a window"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 0}, "sliding_window=1024"),
        ("qwen3", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ("qwen3", {"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ("mistral", {"sliding_window": 4096}, "sliding_window=4096"),
        ("llama3.1", {"attention_bias": True}, "attention_bias=True"),
        ("qwen3", {"attention_bias": True}, "attention_bias=True"),
        ("mistral", {"attention_bias": True}, "attention_bias=True"),
        ("llama3.1", {"mlp_bias": True}, "mlp_bias=True"),
        ("llama3.1", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("llama3.1", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ("llama3.1", {"logit_scale": 0.25}, "logit_scale=0.25"),
        ("r1-distill", {"attention_dropout": 0.1}, "attention_dropout=0.1"),
        ("qwen3-moe", {"norm_topk_prob": False}, "norm_topk_prob=False"),
        ("qwen3-moe", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers=1"),
    ],
)
def test_what_changes_the_function_in_silence(changed, family, fields, words, vanilla):
    assert words in refusal(check_architecture, changed(family, **fields), vanilla_mbridge=vanilla)


@pytest.mark.parametrize("vanilla", LAYOUTS)
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("r1-distill", {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28}),
        ("r1-distill", {"use_sliding_window": True, "sliding_window": 131072, "max_window_layers": 2}),
        ("r1-distill", {"attention_bias": True}),
        ("qwen3", {"layer_types": ["full_attention", "full_attention"]}),
        ("llama3.1", {"sliding_window": 4096, "pretraining_tp": 2}),
        ("llama3.1", {"attention_dropout": 0.0, "hidden_act": "silu", "mlp_bias": False}),
        ("qwen3-moe", {"decoder_sparse_step": 1, "mlp_only_layers": []}),
    ],
)
def test_fields_that_change_nothing_pass(changed, family, fields, vanilla):
    check_architecture(changed(family, **fields), vanilla_mbridge=vanilla)


def test_a_field_that_is_left_out_has_its_familys_default(changed):
    for family, field in (("mistral", "sliding_window"), ("qwen3-moe", "norm_topk_prob")):
        model = changed(family)
        config = json.loads((model.folder / "config.json").read_text())
        del config[field]
        (model.folder / "config.json").write_text(json.dumps(config))
        assert field in refusal(check_architecture, model, vanilla_mbridge=False)


@pytest.mark.parametrize(("family", "architecture_"), [("gemma2", "Gemma2"), ("phi3", "Phi3"), ("my_own", "MyOwn")])
def test_a_family_without_a_bridge(changed, family, architecture_):
    model = changed("qwen3", model_type=family, architectures=[f"{architecture_}ForCausalLM"])
    message = refusal(check_architecture, model, vanilla_mbridge=True)
    assert f"describes model_type '{family}', for which mbridge" in message and "qwen3_moe" in message
    if architecture_ == "Gemma2":  # Megatron-Bridge builds it
        check_architecture(model, vanilla_mbridge=False)
    else:
        message = refusal(check_architecture, model, vanilla_mbridge=False)
        assert f"describes {architecture_}ForCausalLM, for which Megatron-Bridge" in message


def test_megatron_bridge_needs_architectures(changed):
    model = changed("qwen3", architectures=None)
    check_architecture(model, vanilla_mbridge=True)
    assert "names no architectures" in refusal(check_architecture, model, vanilla_mbridge=False)


def test_the_installed_mbridge_is_asked():
    from mbridge.core.bridge import _MODEL_REGISTRY

    from retool_mcore.backends.megatron import bridges  # noqa: F401  registers ours

    assert architecture.mbridge_families() == _MODEL_REGISTRY.keys()


def test_registrations_are_read_from_source(tmp_path, monkeypatch):
    folder = tmp_path / "megatron" / "bridge" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('not to be imported')")
    (folder / "some_bridge.py").write_text(
        "_NAME = 'ThirdForCausalLM'\n"
        "@MegatronModelBridge.register_bridge(source=FirstForCausalLM, target=GPTModel)\nclass A: ...\n"
        "@MegatronModelBridge.register_bridge(source='SecondForCausalLM', target=GPTModel)\nclass B: ...\n"
        "@MegatronModelBridge.register_bridge(source=_NAME, target=GPTModel)\nclass C: ...\n"
        "@register_model(['x', 'y'])\nclass D: ...\n"
    )
    names = [f"{name}ForCausalLM" for name in ("First", "Second", "Third")]
    assert list(decorated(folder / "some_bridge.py", "register_bridge", "source")) == names
    assert list(decorated(folder / "some_bridge.py", "register_model", None)) == ["x", "y"]
    spec = type("Spec", (), {"submodule_search_locations": [str(folder.parent)]})
    monkeypatch.setattr(architecture, "find_spec", lambda name: spec)
    assert architecture.installed_architectures.__wrapped__() == frozenset(names)
    monkeypatch.setattr(architecture, "find_spec", lambda name: None)
    assert architecture.installed_architectures.__wrapped__() == frozenset()
    assert Path(architecture.OWN_BRIDGES).is_file()
