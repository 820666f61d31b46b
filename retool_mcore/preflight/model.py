"""Is the folder a Hugging Face model that this project can train? Read from its JSON files and file sizes: no torch."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import FAMILIES, Model, experts_of, known, read_json
from retool_mcore.preflight import machine
from retool_mcore.preflight.weights import check_weights

# verl masks vLLM's logits above len(tokenizer) and the trainer does not. A pretrained model gives its few padding rows
# (Qwen2.5: 0.3 % of the vocabulary) no probability; a fresh model gives them their share, and the two disagree.
MAX_PADDED_VOCAB = 0.005

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


# Keys of a yarn scaling that Megatron-Bridge hands on, and `rope_theta`, which stands in rope_parameters too.
YARN_KEYS = {"type", "rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
YARN_KEYS |= {"beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
LLAMA3 = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}


def find_folder(name: str, *, key: str, advice: str) -> Path:
    """A local folder, or the downloaded snapshot of a hub name. No network: 16 GPUs must not wait for 65 GB.

    `key` names the config key and `advice` says what to do, for the message of the UserError.
    """
    if Path(name).is_dir():
        return Path(name)
    if HUB_NAME.fullmatch(name):
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
        raise UserError(
            f"{key}={name} is neither a folder here nor a downloaded model: run `hf download {name}` or give a folder."
        )
    raise UserError(f"{key} points to {name}, which is not a folder: {advice}.")


def read_model(folder: Path, *, weights: bool = True) -> Model:
    """The shape of the Hugging Face model in `folder`.

    weights: whether its files must be there too, whole and with the tensors that config.json describes; without them
    the parameters are counted from the shape, which of an architecture that the planner does not know gives 0.

    Raises UserError when config.json, one of the keys needed or a weight file is missing or damaged.
    """
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder} has no config.json, so it is not the folder of a Hugging Face model.")
    config = read_json(folder / "config.json")
    keys = ("num_attention_heads", "num_hidden_layers", "vocab_size", "max_position_embeddings")
    missing = [key for key in keys if not isinstance(config.get(key), int)]
    if missing:
        raise UserError(
            f"{folder}/config.json lacks {', '.join(missing)}: expected the config of a decoder-only model."
        )
    heads, layers, vocab, positions = (config[key] for key in keys)
    shape = None if weights else known(folder)
    parameters = check_weights(folder, config) if weights else shape.parameters if shape else 0
    return Model(
        folder=folder,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        layers=layers,
        vocab=vocab,
        max_positions=positions,
        parameters=parameters,
        experts=experts_of(config) or 0,
    )


def check_rotary(model: Model, *, vanilla_mbridge: bool) -> None:
    """Refuse positions that the layout's bridge would build in another way than transformers and vLLM, in silence.

    Megatron-Bridge 0.5.1 builds llama3 (of Llama, with its own three numbers) and yarn, mbridge with our
    backends/megatron/bridges.py the first alone.
    """
    config, file = read_json(model.folder / "config.json"), model.folder / "config.json"
    for scaling in map(read_mapping, (config.get("rope_scaling"), config.get("rope_parameters"))):
        kind = rotary_kind(scaling)
        if kind == "default" or built(kind, scaling, config.get("model_type"), vanilla_mbridge=vanilla_mbridge):
            continue
        bridge, builds = ("mbridge", "llama3") if vanilla_mbridge else ("Megatron-Bridge", "llama3 and yarn")
        layout = " take a layout of GPUs (parallel.megatron.vanilla_mbridge=false)," if vanilla_mbridge else ""
        raise UserError(
            f"{file} scales the rotary embedding by {kind!r} ({dict(scaling)}), which {bridge} does not build for "
            f"{config.get('model_type')}; it knows {builds}: remove the scaling where sequences are shorter than it is "
            f"for,{layout} or take another model."
        )


def rotary_kind(scaling: Mapping[str, Any]) -> str:
    """The name of a scaling of the rotary embedding, "default" for none; also of one by part or by kind of layer."""
    if layers := [name for name, value in scaling.items() if isinstance(value, Mapping)]:
        return f"one kind for each of {', '.join(layers)}"
    if scaling.get("partial_rotary_factor") not in (1, None):
        return "partial_rotary_factor"
    return str(scaling.get("rope_type") or scaling.get("type") or "default")


def built(kind: str, scaling: Mapping[str, Any], family: Any, *, vanilla_mbridge: bool) -> bool:
    """Whether the layout's bridge builds the scaling for the family (model_type)."""
    if kind == "llama3" and family == "llama":
        return {key: scaling.get(key) for key in LLAMA3} == LLAMA3
    if vanilla_mbridge:
        return False
    if family not in FAMILIES:  # its own bridge's concern
        return kind in ("llama3", "yarn", "partial_rotary_factor")
    # Megatron-Bridge's Mistral cannot be made with a scaling.
    return kind == "yarn" and family != "mistral" and not scaling.keys() - YARN_KEYS


def read_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def check_lora(config: Mapping[str, Any], model: Model) -> None:
    """Refuse adapters (model.lora.rank) where the stack cannot train them, or was not seen to."""
    rank, parallel, recipe = config["model"]["lora"]["rank"], config["parallel"], config.get("recipe", {})
    vanilla, transformer = (parallel["megatron"].get(key) for key in ("vanilla_mbridge", "override_transformer_config"))
    refused = {
        "Megatron-Bridge builds adapters, and parallel.megatron.vanilla_mbridge=true, which every CPU layout has, does "
        "without: take a layout of GPUs": vanilla,
        f"Megatron-Bridge cuts it over parallel.tp={parallel['tp']} ranks: take a multiple of it": rank
        % parallel["tp"],
        "adapters of experts were not tried: take a dense model": model.experts,
        "adapters with a critic were not tried: take another recipe.advantage": recipe.get("advantage") == "gae",
        "under recompute_granularity=selective the first layer's would get no gradients: take null or full in "
        "parallel.megatron.override_transformer_config": transformer.get("recompute_granularity") == "selective",
        "adapters of FP8 weights were not tried: leave override_transformer_config.fp8 out": transformer.get("fp8"),
    }
    if why := next((why for why, refuses in refused.items() if refuses), None):
        raise UserError(f"model.lora.rank={rank}: {why}, or model.lora.rank=0.")


def check_fp8(config: Any, model: Model) -> None:
    """Refuse an engine of quantised weights (verl's rollout.quantization) that does not start or cannot be verified."""
    kind, layout = config.verl.actor_rollout_ref.rollout.get("quantization"), config.parallel
    if kind is None:
        return
    shape, tp, lora = known(model.folder), layout.rollout_tp, config.model.get("lora", {}).get("rank")
    hopper = layout.device == "cuda" and int(min(machine.compute_capabilities(), default=9)) == 9
    if kind != "fp8" or not hopper or shape is None or shape.experts or lora:
        raise UserError(
            f"verl.actor_rollout_ref.rollout.quantization={kind} cannot be used: only fp8 can, for a dense model "
            "trained in full (model.lora.rank=0), on GPUs of compute capability 9 (H100, H200); leave it out elsewhere."
        )
    sizes = [shape.hidden, shape.q_width // tp, max(shape.kv_width // tp, shape.head_dim), shape.ffn // tp]
    # A matrix of 128 inputs has one column of scales, whose dimension verl drops.
    if any(size % 128 for size in sizes) or 128 in (shape.hidden, shape.q_width, shape.ffn):
        raise UserError(
            "verl.actor_rollout_ref.rollout.quantization=fp8 needs a model whose width and each engine rank's queries, "
            f"keys and MLP (here {sizes}, with parallel.rollout_tp={tp}) are multiples of 128, and no matrix with 128 "
            "inputs: lower parallel.rollout_tp, or leave it out."
        )


def check_tokenizer(model: Model, rollout_format: str, template: str | None = None) -> None:
    """The tokenizer next to the weights belongs to them, can end a turn and has the chat template the format needs.

    template: the text of the model group's, in place of the tokenizer's.
    """
    # Imported here: `retool --help` and the checks that need no tokenizer should not wait for it.
    from tokenizers import Tokenizer

    folder = model.folder
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if not (folder / name).is_file():
            raise UserError(f"{folder} has a config.json but no {name}: copy the tokenizer files into the same folder.")
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception for every malformed file
        raise UserError(f"{folder}/tokenizer.json cannot be read ({error}): copy the tokenizer again.") from error
    check_vocabulary(folder, tokens=tokenizer.get_vocab_size(with_added_tokens=True), vocab=model.vocab)

    config = read_json(folder / "tokenizer_config.json")
    eos = config.get("eos_token")
    eos = eos.get("content") if isinstance(eos, dict) else eos
    if not eos or tokenizer.token_to_id(eos) is None:
        raise UserError(
            f"{folder}: the tokenizer's eos_token is {eos!r}, expected a token of its vocabulary (without one no turn "
            "ends): copy the tokenizer files again."
        )
    check_chat_template(folder, template or chat_template(folder, config), rollout_format)


def check_vocabulary(folder: Path, *, tokens: int, vocab: int) -> None:
    if tokens > vocab:
        raise UserError(
            f"{folder}: the tokenizer has {tokens} tokens but the model's vocab_size is {vocab}: this tokenizer "
            "belongs to another model."
        )
    if vocab - tokens > MAX_PADDED_VOCAB * vocab:
        raise UserError(
            f"{folder}: the model's vocab_size is {vocab} but the tokenizer has only {tokens} tokens, so rollout and "
            "trainer would disagree on probabilities: use the model's own tokenizer, or make the two sizes equal."
        )


def chat_template(folder: Path, tokenizer_config: dict) -> str:
    """The default chat template's text, or "" when there is none."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template") or ""
    if isinstance(template, list):  # several named templates; "default" is the one that is used unless asked otherwise
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), "")
    return template


def check_chat_template(folder: Path, template: str, rollout_format: str) -> None:
    if not template.strip():
        raise UserError(
            f"{folder}: the tokenizer has no chat template: use an instruct model or add chat_template.jinja."
        )
    if rollout_format == "hermes" and "tools" not in template:
        raise UserError(
            f"{folder}: rollout.format=hermes needs a chat template that renders tools, and this one never mentions "
            "them: use rollout.format=text or a model trained for function calls."
        )
