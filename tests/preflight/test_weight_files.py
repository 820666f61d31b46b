"""Weight files: whole ones of every family, then each of them cut, swapped, or of another model."""

import json
import shutil
import struct
import time

import pytest
import torch
from families import FAMILIES, write_family
from refused import refusal
from safetensors.torch import load_file, save_file

from retool_mcore.preflight.model import read_model
from retool_mcore.preflight.weights import EMBEDDING, HEAD

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0000\nsize 2003424\n"
QUERY = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of every family: {(family, tied): folder}."""
    root = tmp_path_factory.mktemp("families")
    cases = [(family, tied) for family in FAMILIES for tied in (False, True)]
    return {case: write_family(root / f"{case[0]}-{case[1]}", case[0], tied=case[1]) for case in cases}


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made["qwen3", False], tmp_path / "model")


def rewrite(folder, **changes):
    """Write the weights again with tensors changed; None removes one. Names hold dots: tensors={name: ...}."""
    tensors = load_file(folder / "model.safetensors") | changes["tensors"]
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")


def shard(folder, **moved):
    """Two shards and their index; `moved` changes the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | moved}))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_passes_and_its_parameters_are_counted(made, family, tied):
    folder = made[family, tied]
    counted = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    model = read_model(folder)
    assert model.parameters == counted == read_model(folder, weights=False).parameters


def test_shards_pass(folder):
    counted = read_model(folder).parameters
    shard(folder)
    assert read_model(folder).parameters == counted
    (folder / "b.safetensors").unlink()
    assert f"{folder} has no b.safetensors" in refusal(read_model, folder)


@pytest.mark.parametrize("name", ["model.safetensors", "b.safetensors"])
def test_a_git_lfs_pointer_is_named(folder, name):
    if name != "model.safetensors":
        shard(folder)
    (folder / name).write_text(POINTER)
    message = refusal(read_model, folder)
    assert message.startswith(f"{folder / name} is a git-lfs pointer of 72 bytes") and "git lfs pull" in message


@pytest.mark.parametrize("kept", [0.999, 0.5, 0.01])
def test_a_file_that_was_cut_off_is_named(folder, kept):
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * kept)])
    message = refusal(read_model, folder)
    assert f"{file} ends after" in message and "copy or export the model again" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "0 bytes"),
        (b"1234", "does not begin as a safetensors file"),
        (b"<html>not found</html>", "does not begin as a safetensors file"),
        (struct.pack("<Q", 2) + b"[]", "unreadable safetensors header"),
        (struct.pack("<Q", 4) + b"{{{{", "unreadable safetensors header"),
        (struct.pack("<Q", 11) + b'{"a": null}', "unreadable safetensors header"),
        (struct.pack("<Q", 100) + b"{}", "within its header of 100"),
        (
            struct.pack("<Q", 59) + b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0,8]}}'[:59] + b"12345678",
            "unreadable safetensors header",
        ),
        (
            struct.pack("<Q", 60) + b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0,8]}}' + b"12345678",
            "a takes 8 bytes, and F32 of shape [4] needs 16",
        ),
    ],
)
def test_a_file_that_is_no_safetensors_file_is_named(folder, content, words):
    (folder / "model.safetensors").write_bytes(content)
    message = refusal(read_model, folder)
    assert str(folder / "model.safetensors") in message and words in message


def test_weights_of_pytorch_are_to_be_converted(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    message = refusal(read_model, folder)
    assert "only weights of PyTorch (*.bin), expected safetensors" in message and "save_pretrained" in message


def test_an_index_that_lies_is_named(folder):
    shard(folder, **{QUERY: "c.safetensors"})
    assert f"{folder} has no c.safetensors" in refusal(read_model, folder)
    index = folder / "model.safetensors.index.json"
    for content, words in (
        ({"weight_map": {QUERY: "a.safetensors", "nowhere": "a.safetensors"}}, "lists"),
        ({"weight_map": {}}, "names no weight file"),
        ({"weight_map": [QUERY]}, "no weight_map"),
        ({"weight_map": {QUERY: 3}}, "no weight_map"),
        ({}, "no weight_map"),
    ):
        index.write_text(json.dumps(content))
        assert words in refusal(read_model, folder)


@pytest.mark.parametrize("name", [QUERY, "model.norm.weight", EMBEDDING, HEAD])
def test_a_missing_tensor_is_named(folder, name):
    rewrite(folder, tensors={name: None})
    message = refusal(read_model, folder)
    assert f"without {name}" in message and "hold 24 of the 25 tensors" in message


def test_a_tensor_of_another_model_is_named(folder):
    rewrite(folder, tensors={QUERY: torch.zeros(64, 128)})
    assert f"{QUERY} has the shape [64, 128], and config.json describes [128, 128]" in refusal(read_model, folder)
    rewrite(folder, tensors={QUERY: torch.zeros(128, 128, dtype=torch.int8)})
    assert f"{QUERY} is stored as I8" in refusal(read_model, folder)


@pytest.mark.parametrize("name", ["model.layers.2.self_attn.q_proj.weight", "model.layers.0.self_attn.o_proj.bias"])
def test_a_tensor_that_config_json_does_not_describe_is_named(folder, name):
    rewrite(folder, tensors={name: torch.zeros(128)})
    assert f"holds {name}, which is no part of the model" in refusal(read_model, folder)


def test_old_tables_of_the_rotary_embedding_pass(folder):
    rewrite(folder, tensors={"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(16)})
    assert read_model(folder)


def test_a_tied_model_may_hold_an_equal_head_and_no_other(made, tmp_path):
    folder = shutil.copytree(made["llama3.1", True], tmp_path / "tied")
    counted = read_model(folder).parameters
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    rewrite(folder, tensors={HEAD: embedding.clone()})
    assert read_model(folder).parameters == counted
    rewrite(folder, tensors={HEAD: 2 * embedding})
    assert "set tie_word_embeddings to false" in refusal(read_model, folder)


def test_a_family_that_the_planner_does_not_know_needs_whole_files_only(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mixtral"}))
    rewrite(folder, tensors={QUERY: None})
    assert read_model(folder).parameters > 0
    (folder / "model.safetensors").write_text(POINTER)
    assert "git-lfs" in refusal(read_model, folder)


def test_a_large_folder_takes_no_time(tmp_path, made):
    """64 layers as 32B has them, in sparse files: nothing but the headers is read."""
    folder = tmp_path / "large"
    folder.mkdir()
    for file in made["qwen3", False].glob("*.json"):
        shutil.copy(file, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600, "head_dim": 128}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 151936}
    (folder / "config.json").write_text(json.dumps(config))
    from retool_mcore.planner.shape import Shape
    from retool_mcore.preflight.weights import expected_tensors

    header, end = {}, 0
    for name, shape in expected_tensors(Shape.from_hf(folder)):
        size = 2 * torch.Size(shape).numel()
        header[name], end = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}, end + size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    began = time.monotonic()
    assert read_model(folder).parameters == pytest.approx(32.8e9, rel=0.01)
    assert time.monotonic() - began < 5
