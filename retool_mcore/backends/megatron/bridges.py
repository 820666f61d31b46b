"""mbridge's bridges of families that it lacks or builds wrongly (mbridge 0.15.1: vanilla_mbridge=true, so the CPU).

- llama: mbridge/models/llama.py takes any scaling of the rotary embedding for a linear one, and with transformers 5 for
  none: Llama 3.1's logits would be wrong, in silence.
- mistral: without a sliding window it is Llama's layer; mbridge has none.
- Tied embeddings: under pipeline parallelism mbridge looks for an output layer in the files of every family but Qwen's,
  and Qwen's bridges change the names of their whole class, for every later model of the process. A value model of a
  tied folder asks for an output layer too, and a tied folder whose index lists one would be saved without that shard.
"""
# The mix-in uses attributes of mbridge's classes.
# mypy: disable-error-code="attr-defined,has-type"

import json
from pathlib import Path

import torch
from mbridge.core import register_model
from mbridge.core.safetensor_io import SafeTensorIO
from mbridge.models.llama import LLaMABridge
from mbridge.models.qwen2 import Qwen2Bridge
from mbridge.models.qwen3 import Qwen3Bridge
from mbridge.models.qwen3moe import Qwen3MoEBridge

from retool_mcore.backends.verl.fingerprint import EMBEDDING, HEAD


class TiedFolder(SafeTensorIO):
    """Reads and writes the weight files of a tied model: they need no output layer, and a listed one is left out."""

    def __init__(self, hf_dir: str):
        super().__init__(hf_dir)
        self.index.pop(HEAD, None)  # also in `origin_index`, which holds the same dictionary

    def load_some_hf_weight(self, hf_weight_names: list[str]) -> dict[str, torch.Tensor]:
        names = [EMBEDDING if name == HEAD else name for name in hf_weight_names]
        weights = super().load_some_hf_weight(list(dict.fromkeys(names)))
        return {name: weights[read] for name, read in zip(hf_weight_names, names, strict=True)}


class TiedBridge:
    """A mix-in for a bridge of a family whose models may be tied."""

    def _adjust_mapping_for_shared_weights(self) -> None:
        if self.hf_config.tie_word_embeddings:
            self._DIRECT_MAPPING = self._DIRECT_MAPPING | {"output_layer.weight": EMBEDDING}

    def _get_hf_shared_weight_keys(self) -> list[str]:
        return [EMBEDDING] if self.hf_config.tie_word_embeddings else []

    def _get_safetensor_io(self, weights_path: str) -> SafeTensorIO:
        # A value model's own configuration is untied, whatever its folder is.
        folder = self._get_actual_hf_path(weights_path)
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return (TiedFolder if config.get("tie_word_embeddings", False) else SafeTensorIO)(folder)


@register_model(["llama", "mistral"])
class LlamaBridge(TiedBridge, LLaMABridge):
    """Llama 2 to 3.2, Mistral; what else a scaling may say is refused by preflight/model.py."""

    def _get_gptmodel_args(self) -> dict:
        scaling = self.hf_config.rope_scaling or {}
        scaled = scaling.get("rope_type") == "llama3"
        return {
            "vocab_size": self.hf_config.vocab_size,
            "max_sequence_length": self.hf_config.max_position_embeddings,
            "position_embedding_type": "rope",
            "rotary_base": self.hf_config.rope_theta,
            "rope_scaling": scaled,
            **({"rope_scaling_factor": scaling["factor"]} if scaled else {}),
        }


@register_model("qwen2")
class TiedQwen2Bridge(TiedBridge, Qwen2Bridge):
    """Qwen2 and Qwen2.5."""


@register_model("qwen3")
class TiedQwen3Bridge(TiedBridge, Qwen3Bridge):
    """Qwen3."""


@register_model("qwen3_moe")
class TiedQwen3MoEBridge(TiedBridge, Qwen3MoEBridge):
    """Qwen3-MoE."""
