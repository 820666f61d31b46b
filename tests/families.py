"""Model families at the size of a test: each one's architecture, special tokens and chat template, with random weights.

`tests/chat_templates/` holds the models' own templates, `configs/model/templates/` ours, which only append.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from retool_mcore.config import CONFIG_DIR
from retool_mcore.data.tiny_model import PIECES

VOCABULARY = 384
OWN = Path(__file__).parent / "chat_templates"
OURS = CONFIG_DIR / "model" / "templates"

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,  # heads of 32: vLLM attends to no smaller ones on a CPU
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 1e6,
    "use_cache": True,
    "initializer_range": 0.15,  # so that what attention and router do is seen in the logits
}


@dataclass(frozen=True)
class Family:
    model_type: str
    architecture: str
    own: str  # its template under OWN
    ours: str  # under OURS
    special: tuple[str, ...]
    plain: tuple[str, ...] = ()  # added tokens that are not special
    bos: str | None = None
    eos: str = "<|im_end|>"
    pad: str = "<|endoftext|>"
    shape: dict = field(default_factory=dict)
    tokenizer_class: str = "PreTrainedTokenizerFast"


_CHATML = {"special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), "own": "qwen3", "ours": "chatml"}
_THINK = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

FAMILIES = {
    "qwen3": Family(
        "qwen3", "Qwen3ForCausalLM", plain=_THINK, shape={"head_dim": 32}, tokenizer_class="Qwen2Tokenizer", **_CHATML
    ),
    "qwen3-moe": Family(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        plain=_THINK,
        tokenizer_class="Qwen2Tokenizer",
        shape={
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "router_aux_loss_coef": 0.001,
        },
        **_CHATML,
    ),
    "r1-distill": Family(
        "qwen2",
        "Qwen2ForCausalLM",
        own="r1-distill",
        ours="r1-distill",
        special=("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|endoftext|>"),
        plain=("<｜User｜>", "<｜Assistant｜>", *_THINK[:2]),
        bos="<｜begin▁of▁sentence｜>",
        eos="<｜end▁of▁sentence｜>",
        pad="<｜end▁of▁sentence｜>",
        tokenizer_class="LlamaTokenizerFast",
    ),
    "llama3.1": Family(
        "llama",
        "LlamaForCausalLM",
        own="llama3.1",
        ours="llama3",
        special=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>"),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        pad="<|eot_id|>",
        shape={
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
    "mistral": Family(
        "mistral",
        "MistralForCausalLM",
        own="mistral",
        ours="mistral",
        special=("<s>", "</s>", "[INST]", "[/INST]"),
        bos="<s>",
        eos="</s>",
        pad="</s>",
        shape={"head_dim": 32, "sliding_window": None},
    ),
}


def write_family(folder: Path, name: str, seed: int = 1, weights: bool = True, tied: bool = False) -> Path:
    """Write the Hugging Face folder of a family: tokenizer with its own template, config and random float32 weights.

    tied: whether the output layer is the embedding, and the weight file holds no lm_head.
    """
    family = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(family)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = (OWN / f"{family.own}.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template)
    named = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    _write(
        folder / "tokenizer_config.json",
        {
            **named,
            "tokenizer_class": family.tokenizer_class,
            "model_max_length": 1024,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "chat_template": template,
        },
    )
    ids = {f"{key}_id": None if token is None else tokenizer.token_to_id(token) for key, token in named.items()}
    config = {"architectures": [family.architecture], "model_type": family.model_type, "dtype": "float32"}
    config |= _SHAPE | family.shape | ids | {"attention_bias": False, "tie_word_embeddings": tied}
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", {key: ids[key] for key in ("eos_token_id", "pad_token_id")})
    if weights:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
        kept = (folder / "config.json").read_text(), (folder / "generation_config.json").read_text()
        model.save_pretrained(folder)
        for file, text in zip(("config.json", "generation_config.json"), kept, strict=True):
            (folder / file).write_text(text)  # as the hub has them, not as this release of transformers rewrites them
    return folder


def _tokenizer(family: Family) -> Tokenizer:
    """Every byte, the family's tokens, the pieces of a call, and reserved tokens up to VOCABULARY; no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in family.special])
    plain = dict.fromkeys((*family.plain, *(piece for piece in PIECES if not piece.isalpha())))
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in plain])
    reserved = range(VOCABULARY - tokenizer.get_vocab_size())
    tokenizer.add_special_tokens([AddedToken(f"<|reserved_{i}|>", normalized=False, special=True) for i in reserved])
    return tokenizer


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
