"""The flagships' shapes, thin: their layers, heads and experts, but narrow matrices and the tiny model's tokenizer."""

import json
import os
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from retool_mcore.data import tiny_model

LAYERS = "REHEARSAL_LAYERS"  # names the variable: fewer layers than SHAPES have, for a shorter rehearsal

_SHARED = {
    "vocab_size": tiny_model.VOCAB_SIZE,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 1e6,
    "initializer_range": 0.05,
    "dtype": "float32",
}
SHAPES = {
    # Qwen2.5-32B: heads of 128, hidden 5120, intermediate 27648
    "qwen2.5-32b": _SHARED
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "hidden_size": 160,
        "intermediate_size": 64,
        "use_sliding_window": False,
    },
    # Qwen3-30B-A3B: heads of 128, hidden 2048, an expert 768, and 48 layers: 12 have a quarter of its tensors
    "qwen3-30b-a3b": _SHARED
    | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 12,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 4,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
        "attention_bias": False,
    },
}


def write_thin(folder: Path, name: str) -> Path:
    """The Hugging Face folder of a shape, of $REHEARSAL_LAYERS layers if that is set, with random float32 weights: also
    biases and norms, so that a parameter that is left out or put elsewhere is seen."""
    folder.mkdir(parents=True)
    tiny_model.write_tokenizer(folder)
    tokenizer = tiny_model.build_tokenizer()
    shape = SHAPES[name] | {
        "num_hidden_layers": int(os.environ.get(LAYERS, SHAPES[name]["num_hidden_layers"])),
        "eos_token_id": tokenizer.token_to_id(tiny_model.EOS),
        "pad_token_id": tokenizer.token_to_id(tiny_model.PAD),
    }
    (folder / "config.json").write_text(json.dumps(shape))
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(shape))
    return folder
