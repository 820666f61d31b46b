"""Can the installed bridge build the model that config.json describes? Read from JSON and source text: no torch.

A bridge that leaves out what it does not know trains another model than vLLM samples from, in silence. Megatron-Bridge
(0.5.1) builds the policy on GPU layouts, mbridge (0.15.1, with backends/megatron/bridges.py) on CPU layouts
(parallel.megatron.vanilla_mbridge=true). What a bridge registers is read from its installed sources, since importing
them takes many seconds and a GPU.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from retool_mcore.errors import UserError
from retool_mcore.planner.shape import FAMILIES, Model, read_json
from retool_mcore.preflight.model import check_rotary, read_mapping

OWN_BRIDGES = Path(__file__).parents[1] / "backends" / "megatron" / "bridges.py"

# What Megatron-Bridge 0.5.1 registers of models with text alone, for a machine on which it is not installed.
_NAMES = """
BailingMoeV2 DeciLM DeepseekV2 DeepseekV3 DeepseekV4 Ernie4_5_Moe FalconH1 Gemma Gemma2 Gemma3 Gemma4 Glm4Moe
Glm4MoeLite GlmMoeDsa GptOss KimiK2 Llama MiMo MiMoV2Flash MiniMaxM2 Mistral Nemotron NemotronH Olmoe Qwen2 Qwen3
Qwen3Moe Qwen3Next Qwen3_5 Qwen3_5Moe SarvamMLA SarvamMoE Step3p5
"""
MEGATRON_BRIDGE = frozenset(f"{name}ForCausalLM" for name in _NAMES.split())

# Of the families in planner/shape.py: the values of a field with which all of transformers, vLLM and both bridges
# compute the same. None: the field may be null; a field that is left out has its family's default.
SAME = {
    "hidden_act": ("silu", "swish"),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_qk_norm": (False, None),
    "partial_rotary_factor": (1, None),
    "attention_dropout": (0, None),
    "hidden_dropout": (0, None),
    "logit_scale": (1, None),
    "logits_scaling": (1, None),
    "embedding_multiplier": (1, None),
    "residual_multiplier": (1, None),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "num_nextn_predict_layers": (0, None),
}
SAME_OF_FAMILY: dict[str, dict[str, tuple]] = {
    "qwen2": {"attention_bias": (True, False, None)},  # q, k and v have a bias whatever the field says
    "qwen3_moe": {"norm_topk_prob": (True,), "decoder_sparse_step": (1, None), "mlp_only_layers": ([], None)},
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 4096},
    "qwen3_moe": {"norm_topk_prob": False},
}
TOWERS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower", "visual")
NOT_QUANTISED = "give the model's folder in bfloat16, float16 or float32"


def check_architecture(model: Model, *, vanilla_mbridge: bool) -> None:
    """Refuse a model that the layout's bridge does not build, or builds in another way than transformers and vLLM."""
    config, file = read_json(model.folder / "config.json"), model.folder / "config.json"
    if config.get("quantization_config"):
        kind = (read_mapping(config["quantization_config"])).get("quant_method") or "unknown"
        raise UserError(
            f"{file} says that the weights are quantised ({kind}), which cannot be trained: {NOT_QUANTISED}."
        )
    if tower := next((key for key in TOWERS if config.get(key)), None):
        raise UserError(f"{file} has a {tower}: models that read more than text cannot be trained, take a text model.")
    check_registered(config, file, vanilla_mbridge=vanilla_mbridge)
    check_rotary(model, vanilla_mbridge=vanilla_mbridge)
    if config.get("model_type") in FAMILIES:
        check_fields(config, file)


def check_registered(config: Mapping[str, Any], file: Path, *, vanilla_mbridge: bool) -> None:
    """Refuse a `model_type` (mbridge) or `architectures` (Megatron-Bridge, vLLM) for which there is no bridge."""
    family, architectures = config.get("model_type"), config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UserError(f"{file} has architectures {architectures!r}, expected a list of names: copy the model again.")
    causal = [name for name in architectures if name.endswith("ForCausalLM")]
    if architectures and not causal:
        what = "a causal language model (architectures with a name that ends in ForCausalLM)"
        raise UserError(f"{file} describes {', '.join(architectures)}, expected {what}.")
    if vanilla_mbridge:
        if family not in (known := mbridge_families()):
            raise UserError(
                no_bridge(file, f"model_type {family!r}", "mbridge, which builds it on CPU layouts,", known)
            )
        return
    if not causal:
        raise UserError(f"{file} names no architectures, by which Megatron-Bridge finds a model: copy the model again.")
    known = installed_architectures() or MEGATRON_BRIDGE
    if causal[0] not in known:
        text = {name for name in known if name.endswith("ForCausalLM")}
        raise UserError(no_bridge(file, causal[0], "Megatron-Bridge, which builds it on GPU layouts,", text))


def no_bridge(file: Path, what: str, bridge: str, known: frozenset[str] | set[str]) -> str:
    return f"{file} describes {what}, for which {bridge} has no bridge: expected one of {', '.join(sorted(known))}."


def check_fields(config: Mapping[str, Any], file: Path) -> None:
    """Refuse a field whose value a bridge or vLLM leaves out, of a model of the families in planner/shape.py."""
    family = config["model_type"]
    fields = SAME | SAME_OF_FAMILY.get(family, {})
    values = {**DEFAULTS.get(family, {}), **config}
    for name, same in fields.items():
        if name in values and values[name] not in same:
            expected = " or ".join(repr(value) for value in same if value is not None or len(same) == 1)
            raise UserError(
                f"{file} has {name}={values[name]!r}, and bridges, transformers and vLLM build only {expected} alike "
                f"for {family}: take another model, or write that value if the model was trained with it."
            )
    layers = values.get("layer_types") or []
    sliding = sliding_window(values) or next((kind for kind in layers if kind != "full_attention"), None)
    if sliding is not None:
        raise UserError(
            f"{file} describes attention over a window ({sliding}), which is not trained: where no sequence is longer "
            "than the window, set sliding_window to null (use_sliding_window to false) there; else take another model."
        )


def sliding_window(config: Mapping[str, Any]) -> str | None:
    """The window over which some layer attends, in words; None when every layer attends to all."""
    if config["model_type"] == "llama":
        return None  # no such field
    window = config.get("sliding_window")
    if config["model_type"] != "mistral":
        first, layers = config.get("max_window_layers", 28), config["num_hidden_layers"]
        window = (
            window if config.get("use_sliding_window") and not (isinstance(first, int) and first >= layers) else None
        )
    return None if window is None else f"sliding_window={window}"


@cache
def mbridge_families() -> frozenset[str]:
    """Names of `model_type` that the installed mbridge and our own bridges register."""
    spec = find_spec("mbridge")
    folders = [Path(place) / "models" for place in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return frozenset(name for file in [*files, OWN_BRIDGES] for name in decorated(file, "register_model", None))


@cache
def installed_architectures() -> frozenset[str]:
    """Architectures that the installed Megatron-Bridge registers; empty when it is not installed."""
    try:
        spec = find_spec("megatron.bridge")
    except ModuleNotFoundError:
        return frozenset()
    folders = [Path(place) / "models" for place in (spec.submodule_search_locations or ())] if spec else []
    files = [file for folder in folders for file in sorted(folder.rglob("*_bridge.py"))]
    return frozenset(name for file in files for name in decorated(file, "register_bridge", "source"))


def decorated(file: Path, decorator: str, keyword: str | None) -> Iterator[str]:
    """Names that `file` gives to a class decorator, as its first argument or as `keyword`: strings or class names."""
    text = file.read_text(encoding="utf-8")
    if decorator not in text:
        return
    tree = ast.parse(text, str(file))
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        for call in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != decorator:
                continue
            values = [word.value for word in call.keywords if word.arg == keyword] if keyword else call.args[:1]
            for value in values:
                value = constants.get(value.id, value) if isinstance(value, ast.Name) else value
                for one in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                    yield str(one.value) if isinstance(one, ast.Constant) else ast.unparse(one).rpartition(".")[2]
