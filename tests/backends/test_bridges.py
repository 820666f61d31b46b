"""mbridge's bridges of tied models: names, and what is read from and written to a folder with and without a head."""

import json

import pytest
import torch
from families import FAMILIES, write_family
from mbridge.core import AutoBridge
from mbridge.core.parallel_states import ParallelStates
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from retool_mcore.backends.megatron import bridges
from retool_mcore.backends.verl.fingerprint import EMBEDDING, HEAD

OUTPUT = "output_layer.weight"


def bridge_of(folder, **fields):
    config = AutoConfig.from_pretrained(folder)
    for name, value in fields.items():
        setattr(config, name, value)
    return AutoBridge.from_config(config, dtype=torch.float32, parallel_states=ParallelStates())


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def folder(family, tmp_path):
    return write_family(tmp_path / "model", family, tied=True)


def test_the_last_stage_of_a_tied_model_reads_the_embedding(folder):
    tied = bridge_of(folder)
    assert isinstance(tied, bridges.TiedBridge)
    (name,) = tied._weight_name_mapping_mcore_to_hf(OUTPUT)
    assert name == EMBEDDING
    # mbridge's own Qwen bridges would take the embedding for the head of an untied model from here on.
    assert bridge_of(folder, tie_word_embeddings=False)._weight_name_mapping_mcore_to_hf(OUTPUT) == [HEAD]
    assert tied._weight_name_mapping_mcore_to_hf(OUTPUT) == [EMBEDDING]


def test_a_value_model_of_a_tied_folder_needs_no_head(folder):
    critic = bridge_of(folder, tie_word_embeddings=False)  # verl unties a critic
    found = critic._get_safetensor_io(str(folder)).load_some_hf_weight([EMBEDDING, HEAD, "model.norm.weight"])
    stored = load_file(folder / "model.safetensors")
    assert found.keys() == {EMBEDDING, HEAD, "model.norm.weight"}
    assert torch.equal(found[HEAD], stored[EMBEDDING]) and torch.equal(found[EMBEDDING], stored[EMBEDDING])


def test_a_tied_folder_whose_index_lists_a_head_is_written_whole(folder, tmp_path):
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(stored | {HEAD: stored[EMBEDDING].clone()}, folder / "part.safetensors")
    weight_map = dict.fromkeys([*stored, HEAD], "part.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    files, output = bridge_of(folder)._get_safetensor_io(str(folder)), tmp_path / "output"
    output.mkdir()
    assert torch.equal(files.load_one_hf_weight(HEAD), stored[EMBEDDING])
    # Two pipeline stages export the embedding.
    files.save_hf_weight(iter([*stored.items(), (EMBEDDING, stored[EMBEDDING])]), str(output), [EMBEDDING])
    files.save_index(str(output))
    written = load_file(output / "part.safetensors")
    assert written.keys() == stored.keys()
    index = json.loads((output / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == stored.keys()


def test_an_untied_folder_without_a_head_stays_refused(tmp_path):
    folder = write_family(tmp_path / "model", "llama3.1")
    stored = load_file(folder / "model.safetensors")
    stored.pop(HEAD)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(ValueError, match="not found"):
        bridge_of(folder)._get_safetensor_io(str(folder)).load_some_hf_weight([EMBEDDING, HEAD])
