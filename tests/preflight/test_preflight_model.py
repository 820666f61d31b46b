"""A model folder: the tiny model's own files, then each of them missing, cut or swapped."""

import json

import pytest
from refused import refusal
from safetensors.torch import load_file

from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.preflight.model import check_tokenizer, check_vocabulary, find_folder, read_model


@pytest.fixture
def folder(tmp_path):
    return make_tiny_model(tmp_path / "model", seed=1)


def edit(path, **changes):
    """Set keys of a JSON file; None removes one."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: entry for key, entry in value.items() if entry is not None}))


def test_the_tiny_model_passes_and_its_shape_is_read(folder):
    model = read_model(folder)
    config = json.loads((folder / "config.json").read_text())
    assert (model.heads, model.kv_heads) == (config["num_attention_heads"], config["num_key_value_heads"])
    assert (model.layers, model.vocab) == (config["num_hidden_layers"], config["vocab_size"])
    assert model.parameters == sum(weight.numel() for weight in load_file(folder / "model.safetensors").values())
    check_tokenizer(model, "text")


def test_a_wrong_path_says_what_to_do(tmp_path):
    message = refusal(find_folder, str(tmp_path / "nothing"), key="init_from", advice="run `retool sft` first")
    assert message.startswith(f"init_from points to {tmp_path}/nothing") and "retool sft" in message
    (tmp_path / "file").write_text("x")
    assert "not a folder" in refusal(find_folder, str(tmp_path / "file"), key="model.path", advice="x")


def test_a_hub_name_is_looked_for_in_the_cache_only(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refusal(find_folder, "some-lab/some-model", key="model.path", advice="x")
    assert "hf download some-lab/some-model" in message


def test_a_relative_folder_is_not_taken_for_a_hub_name(folder, monkeypatch):
    monkeypatch.chdir(folder.parent.parent)
    name = f"{folder.parent.name}/model"
    assert find_folder(name, key="model.path", advice="x").resolve() == folder


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_every_file_is_needed(folder, name):
    (folder / name).unlink()
    assert name in refusal(lambda: check_tokenizer(read_model(folder), "text"))


def test_random_weights_need_config_and_tokenizer_only(folder):
    counted = read_model(folder).parameters
    (folder / "model.safetensors").unlink()
    model = read_model(folder, weights=False)
    check_tokenizer(model, "text")
    assert model.parameters == counted
    edit(folder / "config.json", model_type="mixtral")
    assert read_model(folder, weights=False).parameters == 0
    (folder / "config.json").unlink()
    assert "config.json" in refusal(read_model, folder, weights=False)


def test_broken_json_is_named(folder):
    (folder / "config.json").write_text("{")
    assert "config.json" in refusal(read_model, folder)
    (folder / "config.json").write_text("[]")
    assert "list" in refusal(read_model, folder)


def test_a_config_of_another_kind_of_model_is_refused(folder):
    edit(folder / "config.json", num_attention_heads=None)
    assert "num_attention_heads" in refusal(read_model, folder)


def test_key_value_heads_default_to_the_heads(folder):
    edit(folder / "config.json", num_key_value_heads=None)
    model = read_model(folder, weights=False)
    assert model.kv_heads == model.heads


def test_a_tokenizer_of_another_model_is_refused(folder):
    model = read_model(folder)
    edit(folder / "config.json", vocab_size=model.vocab + 128)
    message = refusal(check_tokenizer, read_model(folder, weights=False), "text")
    assert str(model.vocab + 128) in message and str(model.vocab) in message
    edit(folder / "config.json", vocab_size=model.vocab - 1)
    assert "another model" in refusal(check_tokenizer, read_model(folder, weights=False), "text")


def test_padded_vocabularies_of_pretrained_models_pass(tmp_path):
    check_vocabulary(tmp_path, tokens=151665, vocab=152064)  # Qwen2.5-32B
    check_vocabulary(tmp_path, tokens=151665, vocab=151936)  # Qwen2.5-1.5B
    assert "512" in refusal(check_vocabulary, tmp_path, tokens=379, vocab=512)
    assert "384" in refusal(check_vocabulary, tmp_path, tokens=382, vocab=384)


@pytest.mark.parametrize("eos", [None, "<never seen>", {"content": "<never seen>"}])
def test_an_end_token_outside_the_vocabulary_is_refused(folder, eos):
    edit(folder / "tokenizer_config.json", eos_token=eos)
    assert "eos_token" in refusal(check_tokenizer, read_model(folder), "text")


def test_the_chat_template_may_stand_in_either_file(folder):
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").unlink()
    edit(folder / "tokenizer_config.json", chat_template=template)
    check_tokenizer(read_model(folder), "text")
    edit(folder / "tokenizer_config.json", chat_template=[{"name": "default", "template": template}])
    check_tokenizer(read_model(folder), "text")
    edit(folder / "tokenizer_config.json", chat_template=None)
    assert "no chat template" in refusal(check_tokenizer, read_model(folder), "text")


def test_function_calls_need_a_template_that_renders_tools(folder):
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    check_tokenizer(read_model(folder), "text")
    assert "rollout.format=hermes" in refusal(check_tokenizer, read_model(folder), "hermes")
    (folder / "chat_template.jinja").write_text("{% if tools %}{{ tools }}{% endif %}")
    check_tokenizer(read_model(folder), "hermes")


def test_a_tokenizer_file_that_is_no_tokenizer_is_named(folder):
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json cannot be read" in refusal(check_tokenizer, read_model(folder), "text")
