"""A checkpoint with adapters is a whole policy, and goes on only on the base that it was trained on."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager

from retool_mcore.backends.megatron.adapters import AdapterCheckpoints
from retool_mcore.errors import UserError
from retool_mcore.state import checkpoints

LORA = {"rank": 4, "alpha": 8, "targets": ["linear_qkv"]}


class Bridge:
    """Megatron-Bridge's three calls: PEFT's form, merged weights, and those below the adapters."""

    def __init__(self, weights: dict, wrapped: tuple[str, ...]):
        self.weights, self.wrapped = weights, wrapped

    def save_hf_adapter(self, model, path, peft):
        Path(path).mkdir(parents=True)
        (Path(path) / "adapter_model.safetensors").touch()

    def save_hf_weights(self, model, path, strict):
        (Path(path) / "model.safetensors").write_text(f"merged, {strict}")

    def export_hf_weights(self, model, show_progress, merge_adapter_weights):
        assert not merge_adapter_weights
        for name, weight in self.weights.items():
            stem, _, last = name.rpartition(".")
            yield f"{stem}.base_layer.{last}" if name in self.wrapped else name, weight


def manager(weights, wrapped=("q.weight",), path="/models/base") -> AdapterCheckpoints:
    made = AdapterCheckpoints.__new__(AdapterCheckpoints)
    made.bridge, made.model, made.rank, made.model_path = Bridge(weights, wrapped), [], 0, path
    made.peft_cls = SimpleNamespace(dim=4, alpha=8, target_modules=("linear_qkv",))
    made.checkpoint_config, made.vanilla_bridge = SimpleNamespace(strict=True), False
    return made


@pytest.fixture
def base():
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(6, 4, generator=draw).bfloat16() for name in ("q.weight", "embed.weight")}


@pytest.fixture
def saved(base, tmp_path):
    folder = checkpoints.policy_folder(tmp_path)
    folder.mkdir(parents=True)
    manager(base)._save_model_as_hf_via_bridge(str(folder))
    return tmp_path


def test_it_holds_merged_weights_the_adapters_and_what_they_are_of(saved):
    folder = checkpoints.policy_folder(saved)
    assert (folder / "model.safetensors").read_text() == "merged, True"
    assert (folder / "adapter" / "adapter_model.safetensors").exists()
    told = json.loads((folder / checkpoints.LORA).read_text())
    assert told["path"] == "/models/base" and len(told["base"]) == 64
    assert checkpoints.lora(saved) == LORA
    (folder / checkpoints.LORA).unlink()
    assert checkpoints.lora(saved) is None


def test_the_base_is_its_bits_by_name(base):
    digest = manager(base).base()
    assert manager(base, wrapped=()).base() == digest  # whichever are wrapped
    assert manager(dict(reversed(base.items()))).base() == digest  # in any order
    assert manager({"q.weight": base["embed.weight"], "embed.weight": base["q.weight"]}).base() != digest
    base["q.weight"][0, 0] += 1
    assert manager(base).base() != digest


def test_it_goes_on_only_on_its_own_base(base, saved, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        MegatronCheckpointManager, "load_checkpoint", lambda self, *given, **named: loaded.append(given)
    )
    manager(base, path="/elsewhere").load_checkpoint(str(saved))
    assert loaded == [(str(saved),)]
    base["embed.weight"][5, 3] *= 2
    with pytest.raises(UserError, match=r"is based on other weights than /models/new holds: .*\(/models/base then\)"):
        manager(base, path="/models/new").load_checkpoint(str(saved))
    assert len(loaded) == 1
