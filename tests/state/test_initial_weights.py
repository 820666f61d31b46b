"""The weights that a run began with: what is the same, what is another, and what is read again."""

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from retool_mcore.errors import UserError
from retool_mcore.state import initial_weights
from retool_mcore.state.initial_weights import FILE, check, digest, pin


@pytest.fixture
def weights():
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(6, 4, generator=draw).bfloat16() for name in ("a", "b", "c")}


def write(folder, *files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, tensors in enumerate(files):
        save_file(tensors, folder / f"model-{number}.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def test_the_digest_is_of_the_bits_by_name_in_whatever_files(tmp_path, weights):
    whole = digest(write(tmp_path / "one", weights))
    assert digest(write(tmp_path / "two", {"c": weights["c"]}, {n: weights[n] for n in "ab"})) == whole
    (tmp_path / "two/config.json").write_text("another")
    assert digest(tmp_path / "two") == whole
    others = [
        {"a": weights["b"], "b": weights["a"], "c": weights["c"]},
        {n: weights[n] for n in "ab"},
        weights | {"a": weights["a"].reshape(4, 6)},
        weights | {"a": weights["a"].view(torch.float16)},
    ]
    weights["b"][5, 3] *= 2
    found = {digest(write(tmp_path / "other", tensors)) for tensors in [*others, weights]}
    assert len(found) == 5 and whole not in found


def test_other_files_count_as_a_whole(tmp_path):
    for name, content in (("a.bin", b"x"), ("b.bin", b"x"), ("model.safetensors", b"version https://git-lfs\n")):
        (tmp_path / name).write_bytes(content)
    first = digest(tmp_path)
    (tmp_path / "a.bin").write_bytes(b"y")
    second = digest(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    assert len({first, second, digest(tmp_path)}) == 3


def test_a_run_goes_on_only_with_the_weights_that_it_began_with(tmp_path, weights, monkeypatch):
    stage, link = tmp_path / "rl", tmp_path / "policy"
    stage.mkdir()
    link.symlink_to(write(tmp_path / "step_1", weights))
    check(stage, link, "the KL reference of this run")  # a run of an older version has written nothing
    pin(stage, link, resumed=False)
    began = json.loads((stage / FILE).read_text())
    assert began["path"] == str(tmp_path / "step_1")

    shutil.copytree(tmp_path / "step_1", tmp_path / "moved")
    link.unlink()
    link.symlink_to(tmp_path / "moved")
    check(stage, link, "the KL reference of this run")
    pin(stage, link, resumed=True)
    assert json.loads((stage / FILE).read_text())["digest"] == began["digest"]
    monkeypatch.setattr(initial_weights, "digest", None)  # files that have not changed are not read again
    check(stage, link, "the KL reference of this run")
    pin(stage, link, resumed=True)
    monkeypatch.undo()

    weights["c"][0, 0] += 1
    write(tmp_path / "moved", weights)
    with pytest.raises(UserError) as refused:
        check(stage, link, "the KL reference of this run")
    assert str(refused.value) == (
        f"the KL reference of this run is based on other weights than {link} holds: give init_from the folder that the "
        f"run began with ({tmp_path / 'moved'} then), or take another name."
    )
    pin(stage, link, resumed=False)  # a run without a checkpoint begins anew
    check(stage, link, "the KL reference of this run")
