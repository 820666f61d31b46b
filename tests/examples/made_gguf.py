"""Write a small GGUF file with SmolLM2's schema: the metadata, the names, the row order and the tensor types."""

import struct
from pathlib import Path

import numpy as np
from transformers import LlamaForCausalLM

from examples.smollm2.convert import NAMES

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["1 2", "Ġ t", "Ġt h"]  # the first must never be applied: a digit is a token of its own
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
_UINT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 6, 7, 8, 9


def vocabulary() -> list[str]:
    """Return the tokens: special ones, one for every byte, and what the merges make."""
    from tokenizers.pre_tokenizers import ByteLevel

    return [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def metadata(model: LlamaForCausalLM) -> dict:
    """Return the entries of the header for this model and the vocabulary above."""
    config, tokens = model.config, vocabulary()
    return {
        "general.architecture": "llama",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "llama.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def pairs_first(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a q or k projection as llama.cpp's convert_hf_to_gguf.py does (`permute`)."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def tensors_of(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """Return llama.cpp's names and row order for the weights of a transformers model, float32."""
    theirs = {ours: name for name, ours in NAMES.items()}
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    found = {}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        layer = name.split(".")[2] if ".layers." in name else ""
        rows = weight.float().numpy()
        for part, count in heads.items():
            if part in name:
                rows = pairs_first(rows, count)
        found[theirs[name.replace(f".layers.{layer}.", ".layers.{}.")].format(layer)] = rows
    return found


def encode(values: np.ndarray, kind: int) -> bytes:
    """Return the bytes of a tensor of that GGML type; of the quantised ones the nearest values."""
    if kind in (F32, F16):
        return values.astype(np.float32 if kind == F32 else np.float16).tobytes()
    blocks = values.reshape(-1, 32)
    if kind == Q8_0:
        scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
        whole = np.round(blocks / np.maximum(scale.astype(np.float32), 1e-9)[:, None]).astype(np.int8)
        return b"".join(one.tobytes() + row.tobytes() for one, row in zip(scale, whole, strict=True))
    low = blocks.min(1).astype(np.float16)
    scale = ((blocks.max(1) - low.astype(np.float32)) / 15).astype(np.float16)
    steps = (blocks - low.astype(np.float32)[:, None]) / np.maximum(scale.astype(np.float32), 1e-9)[:, None]
    nibbles = np.clip(np.round(steps), 0, 15).astype(np.uint8)
    packed = nibbles[:, :16] | nibbles[:, 16:] << 4
    heads = zip(scale, low, packed, strict=True)
    return b"".join(one.tobytes() + least.tobytes() + row.tobytes() for one, least, row in heads)


def write(path: Path, entries: dict, tensors: dict[str, np.ndarray], kinds: dict[str, int] | None = None) -> Path:
    """Write a GGUF file of version 3; `kinds` name the GGML type of tensors that are not float32."""
    kinds = kinds or {}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(entries))
    head += b"".join(_text(key) + _value(value) for key, value in entries.items())
    body = b""
    for name, values in tensors.items():
        kind = kinds.get(name, F32)
        dimensions = struct.pack(f"<{values.ndim}Q", *reversed(values.shape))
        head += _text(name) + struct.pack("<I", values.ndim) + dimensions + struct.pack("<IQ", kind, len(body))
        body += encode(values, kind)
        body += bytes(-len(body) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value, typed: bool = True) -> bytes:
    for kind, code, form in ((bool, _BOOL, "<?"), (int, _UINT32, "<I"), (float, _FLOAT32, "<f")):
        if isinstance(value, kind):
            return (struct.pack("<I", code) if typed else b"") + struct.pack(form, value)
    if isinstance(value, str):
        return (struct.pack("<I", _STRING) if typed else b"") + _text(value)
    element = _STRING if isinstance(value[0], str) else _UINT32
    head = struct.pack("<IIQ", _ARRAY, element, len(value))
    return head + b"".join(_value(one, typed=False) for one in value)
