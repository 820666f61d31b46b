"""The shape of a decoder-only model, dense or of experts, and its exact number of parameters."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

from retool_mcore.errors import UserError
from retool_mcore.tables import yaml_beside


class Family(NamedTuple):
    """Properties of the layers of a model type, in addition to what every Shape has."""

    qkv_bias: bool  # q, k and v have a bias
    qk_norm: bool  # q and k are normalised


# By `model_type` of config.json, the models whose layers are what Shape counts.
FAMILIES = {
    "qwen2": Family(qkv_bias=True, qk_norm=False),
    "llama": Family(qkv_bias=False, qk_norm=False),
    "mistral": Family(qkv_bias=False, qk_norm=False),
    "qwen3": Family(qkv_bias=False, qk_norm=True),
    "qwen3_moe": Family(qkv_bias=False, qk_norm=True),
}


def check_sizes(whose: str, of: object, names: Sequence[str]) -> None:
    """Raises UserError unless these attributes are whole numbers of 1 or more."""
    for name in names:
        value = getattr(of, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"the {whose}'s {name} is {value!r}, expected a whole number of 1 or more.")


@dataclass(frozen=True)
class Shape:
    """A decoder of pre-normalised layers with grouped-query attention and a gated MLP (SwiGLU), as Qwen2.5."""

    layers: int
    hidden: int
    ffn: int  # width of the MLP's gate and of its up projection; of one expert's
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool  # the output layer is the embedding
    qkv_bias: bool = True
    qk_norm: bool = False
    experts: int = 0  # MLPs of a layer, behind a router; 0: one MLP without a router
    active: int = 0  # experts that work at a token
    lora: int = 0  # rank of the adapters, which alone are trained; 0: none, and all weights are
    lora_targets: tuple[str, ...] = ()

    def __post_init__(self):
        check_sizes("model", self, ("layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"))

    @classmethod
    def from_hf(cls, path: str | Path) -> Self:
        """The shape in `path`/config.json. Raises UserError for a missing file or key and for other architectures."""
        file = Path(path) / "config.json"
        if not file.is_file():
            raise UserError(f"{path} has no config.json, so it is not the folder of a Hugging Face model.")
        config = read_json(file)
        config.setdefault("num_experts", experts_of(config))
        family = config.get("model_type")
        if family not in FAMILIES:
            raise UserError(
                f"{file} describes a {family!r} model, whose parts the planner does not know: "
                f"expected {', '.join(FAMILIES)}."
            )
        moe = ("num_experts", "num_experts_per_tok") if family == "qwen3_moe" else ()
        width = "moe_intermediate_size" if moe else "intermediate_size"
        keys = ("num_hidden_layers", "hidden_size", width, "num_attention_heads", "vocab_size", *moe)
        if missing := [key for key in keys if config.get(key) is None]:
            raise UserError(f"{file} lacks {', '.join(missing)}: copy the model's config again.")
        if moe and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
            raise UserError(f"{file} has layers with and layers without experts, which the planner does not know.")
        layers, hidden, ffn, heads, vocab, *experts = (config[key] for key in keys)
        return cls(
            layers=layers,
            hidden=hidden,
            ffn=ffn,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            # Qwen3's default is no quotient: transformers/models/qwen3/configuration_qwen3.py.
            head_dim=config.get("head_dim", 128 if family == "qwen3" else None) or hidden // heads,
            vocab=vocab,
            tied=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=FAMILIES[family].qkv_bias,
            qk_norm=FAMILIES[family].qk_norm,
            **dict(zip(("experts", "active"), experts, strict=False)),
        )

    def adapted(self, config: Mapping[str, Any]) -> Self:
        """Return this shape with the adapters of a stage's configuration (model.lora), where it trains."""
        lora = config["model"].get("lora", {}) if "train" in config else {}
        return replace(self, lora=lora.get("rank", 0), lora_targets=tuple(lora.get("targets", ())))

    @cached_property
    def q_width(self) -> int:
        return self.heads * self.head_dim

    @cached_property
    def kv_width(self) -> int:
        """Return the width of the keys alone; the values have the same."""
        return self.kv_heads * self.head_dim

    @cached_property
    def mlp(self) -> int:
        """Parameters of one MLP: of the layer's, or of one expert."""
        return 3 * self.hidden * self.ffn

    @cached_property
    def layer_matrices(self) -> int:
        """Parameters of one layer that are multiplied with a token's activations."""
        attention = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        return attention + self.hidden * self.experts + self.mlp * (self.active or 1)

    @cached_property
    def matrices(self) -> int:
        """Return the whole model's parameters that are multiplied with activations, output layer included."""
        return self.layers * self.layer_matrices + self.vocab * self.hidden

    @cached_property
    def layer_parameters(self) -> int:
        bias = (self.q_width + 2 * self.kv_width) * self.qkv_bias
        resting = self.mlp * (self.experts - self.active)
        return self.layer_matrices + resting + bias + 2 * self.hidden + 2 * self.head_dim * self.qk_norm

    @cached_property
    def adapter_parameters(self) -> int:
        """Return the adapter parameters of one layer: for each target (in, out), (in, rank) and (rank, out);
        megatron.bridge.peft.lora."""
        widths = {
            "linear_qkv": self.hidden + self.q_width + 2 * self.kv_width,
            "linear_proj": self.q_width + self.hidden,
            "linear_fc1": self.hidden + 2 * self.ffn,
            "linear_fc2": self.ffn + self.hidden,
        }
        return self.lora * sum(widths[target] for target in self.lora_targets)

    @cached_property
    def embedding_parameters(self) -> int:
        """Return the parameters of the input embedding; an untied output layer has as many again."""
        return self.vocab * self.hidden

    @cached_property
    def parameters(self) -> int:
        outside = self.embedding_parameters * (1 if self.tied else 2) + self.hidden
        return self.layers * self.layer_parameters + outside


@dataclass(frozen=True)
class Model:
    """The facts about a policy's folder that the checks of a layout need."""

    folder: Path
    heads: int
    kv_heads: int
    layers: int
    vocab: int
    max_positions: int
    parameters: int
    experts: int = 0  # of a layer; 0: none


SHAPES = {name: Shape(**fields) for name, fields in yaml_beside(__file__, "shapes.yaml").items()}


def experts_of(config: dict) -> int | None:
    """Return the experts of a layer; transformers 5 writes another name than the hub's folders have."""
    return config.get("num_experts") or config.get("num_local_experts")


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not readable JSON ({error}): copy the model again.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, expected a JSON object: copy the model again.")
    return value


def known(folder: Path) -> Shape | None:
    """The shape in `folder`; None of an architecture that the planner does not know."""
    family = read_json(folder / "config.json").get("model_type")
    return Shape.from_hf(folder) if family in FAMILIES else None


def named(model: str) -> Shape:
    """The shape of a name of SHAPES, or of a Hugging Face folder."""
    if model in SHAPES:
        return SHAPES[model]
    if not Path(model).is_dir():
        raise UserError(
            f"--model {model} is neither a known shape ({', '.join(SHAPES)}) nor a folder here: "
            "give one of them, or the folder of a Hugging Face model."
        )
    return Shape.from_hf(model)
