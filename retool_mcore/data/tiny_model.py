"""A Qwen2-architecture policy and a tokenizer small enough to be trained from scratch on a laptop.

Both are written with numpy, tokenizers and safetensors alone, so that preparing the tiny task imports neither torch nor
transformers and the weights of a seed do not depend on their versions.

The tokenizer holds every byte, so that any text makes the round trip. Tags, fences and the fixed pieces of a call are
one token each, so that a response takes 10 to 60 tokens.

To call the interpreter the policy must copy an expression into a program and a result into its answer. From random
weights two layers may not find the circuit for that (an induction head, arXiv 2209.11895) in 400 steps of SFT, and RL
would then measure the luck of the seed. So the weights are random but hold the circuit's fixed parts: heads that look
back a set distance, and heads that pass on the token they attend to. What to attend to is learned.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from retool_mcore.errors import UserError
from retool_mcore.tables import yaml_beside

_FILES = yaml_beside(__file__)
PIECES, _CONFIG = tuple(_FILES["pieces"]), _FILES["config"]
PAD, TURN_START, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# Each message is rendered alone: the tokens of a conversation's beginning are then the beginning of its tokens.
# There is no default system prompt; tools are listed by signature, because a schema would be longer than the rest.
CHAT_TEMPLATE = Path(__file__).with_suffix(".jinja").read_text()

VOCAB_SIZE, _HIDDEN, _INTERMEDIATE = (_CONFIG[name] for name in ("vocab_size", "hidden_size", "intermediate_size"))
_LAYERS, _HEADS, _KV_HEADS = (_CONFIG[f"num_{name}s"] for name in ("hidden_layer", "attention_head", "key_value_head"))
_HEAD_DIM = _HIDDEN // _HEADS
# Query heads 0, 1 and 2 of layer 0 look 1, 2 and 3 tokens back: three tokens tell most places of an expression apart.
_LOOK_BACK = (1, 2, 3)
# With 6 on each of the 8 fastest rotary frequencies a head puts 97 % of its attention on the one token.
_LOOK_BACK_BIAS, _LOOK_BACK_FREQUENCIES = 6.0, 8
_MARKER = "tiny_model.json"
# Raised whenever the files of a seed change, so that an older folder is not taken for the same model.
_VERSION = 1


def make_tiny_model(root: Path, seed: int) -> Path:
    """Write the model folder `root` (tokenizer, config, float32 weights) and return it.

    The folder appears whole or not at all, also when two processes make it at once. A folder that already holds this
    seed's model is left as it is. Raises UserError when `root` holds anything else.
    """
    root = Path(root)
    if _is_there(root, seed):
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        write_tokenizer(draft)
        _write_model(draft, seed)
        _write_json(draft / _MARKER, {"seed": seed, "version": _VERSION})
        draft.chmod(0o755)
        try:
            os.rename(draft, root)
        except OSError:
            # Another process was quicker, unless its seed differs, which _is_there reports.
            if not _is_there(root, seed):
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _is_there(root: Path, seed: int) -> bool:
    marker = root / _MARKER
    if not marker.is_file():
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UserError(f"{root} exists and is no tiny model; name an empty or new folder for the tiny model.")
        return False
    marked = json.loads(marker.read_text())
    if marked != {"seed": seed, "version": _VERSION}:
        raise UserError(
            f"{root} holds a tiny model of seed {marked['seed']}, version {marked['version']}; asked for was "
            f"seed {seed}, version {_VERSION}. Name another folder or remove this one."
        )
    return True


def write_tokenizer(folder: Path) -> None:
    """The tokenizer's files and its chat template, as Hugging Face reads them."""
    build_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    _write_json(folder / "tokenizer_config.json", _FILES["tokenizer"] | {"chat_template": CHAT_TEMPLATE})


def build_tokenizer() -> Tokenizer:
    """256 bytes, 3 special tokens, PIECES, and reserved tokens up to VOCAB_SIZE. A digit is one token.

    There are no merges: whatever is longer than a byte is an added token. transformers' Qwen2Tokenizer, which
    AutoTokenizer picks for this architecture whatever the folder says, puts its own normaliser and word splitting in
    place of the file's; without merges the splitting cannot matter, and the normaliser (NFC) is the same here.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, normalized=False, special=True) for token in (PAD, TURN_START, EOS)]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in PIECES])
    reserved = range(VOCAB_SIZE - tokenizer.get_vocab_size())
    tokenizer.add_special_tokens([AddedToken(f"<|reserved_{i}|>", normalized=False, special=True) for i in reserved])
    return tokenizer


def _write_model(folder: Path, seed: int) -> None:
    from safetensors.numpy import save_file

    tokenizer = build_tokenizer()
    ends = {"eos_token_id": tokenizer.token_to_id(EOS), "pad_token_id": tokenizer.token_to_id(PAD)}
    _write_json(folder / "config.json", _CONFIG | ends)
    _write_json(folder / "generation_config.json", ends)
    save_file(initial_weights(seed), folder / "model.safetensors", metadata={"format": "pt"})


def initial_weights(seed: int) -> dict[str, np.ndarray]:
    """Tensors of Qwen2ForCausalLM by name, float32, matrices as (out, in).

    Matrices are normal with variance 1 / in; the output matrix is the embedding, scaled; each MLP begins as zero.
    """
    rng = np.random.default_rng(seed)

    def normal(rows: int, columns: int) -> np.ndarray:
        return rng.standard_normal((rows, columns)) / np.sqrt(columns)

    kv_width = _KV_HEADS * _HEAD_DIM
    embedding = rng.standard_normal((VOCAB_SIZE, _HIDDEN))
    weights = {"model.embed_tokens.weight": embedding}
    for layer in range(_LAYERS):
        prefix = f"model.layers.{layer}."
        query, key, value = normal(_HIDDEN, _HIDDEN), normal(kv_width, _HIDDEN), normal(kv_width, _HIDDEN)
        query_bias, key_bias = np.zeros(_HIDDEN), np.zeros(kv_width)
        if layer == 0:
            # Small, so that the biases decide where these heads look, whatever the tokens.
            query, key = 0.1 * query, 0.1 * key
            query_bias, key_bias = _look_back_biases()
            output = normal(_HIDDEN, _HIDDEN)
        else:
            # The transpose of what each query head reads: attended tokens reach the output matrix as themselves.
            groups = value.reshape(_KV_HEADS, _HEAD_DIM, _HIDDEN)
            output = np.repeat(groups, _HEADS // _KV_HEADS, axis=0).reshape(_HIDDEN, _HIDDEN).T
        weights |= {
            f"{prefix}self_attn.q_proj.weight": query,
            f"{prefix}self_attn.q_proj.bias": query_bias,
            f"{prefix}self_attn.k_proj.weight": key,
            f"{prefix}self_attn.k_proj.bias": key_bias,
            f"{prefix}self_attn.v_proj.weight": value,
            f"{prefix}self_attn.v_proj.bias": np.zeros(kv_width),
            f"{prefix}self_attn.o_proj.weight": output,
            f"{prefix}mlp.gate_proj.weight": normal(_INTERMEDIATE, _HIDDEN),
            f"{prefix}mlp.up_proj.weight": normal(_INTERMEDIATE, _HIDDEN),
            f"{prefix}mlp.down_proj.weight": np.zeros((_HIDDEN, _INTERMEDIATE)),
            f"{prefix}input_layernorm.weight": np.ones(_HIDDEN),
            f"{prefix}post_attention_layernorm.weight": np.ones(_HIDDEN),
        }
    weights["model.norm.weight"] = np.ones(_HIDDEN)
    weights["lm_head.weight"] = _CONFIG["initializer_range"] * embedding
    return {name: np.ascontiguousarray(tensor, dtype=np.float32) for name, tensor in weights.items()}


def _look_back_biases() -> tuple[np.ndarray, np.ndarray]:
    """Query and key biases, (_HIDDEN,) and (_KV_HEADS * _HEAD_DIM,), whose score depends on the distance alone.

    Rotary embeddings (arXiv 2104.09864, section 3.2) make the score of biases q, k at distance d the sum over
    frequencies f of |q_f||k_f| cos(f d + phase), so turning q by -f n puts its peak at d = n. The two halves of a head
    pair up, as in Qwen2.
    """
    half = _HEAD_DIM // 2
    frequencies = _CONFIG["rope_theta"] ** (-np.arange(_LOOK_BACK_FREQUENCIES) / half)
    key = np.zeros((_KV_HEADS, 2, half))
    key[:, 0, : len(frequencies)] = _LOOK_BACK_BIAS
    query = np.zeros((_HEADS, 2, half))
    for head, distance in enumerate(_LOOK_BACK):
        query[head, 0, : len(frequencies)] = _LOOK_BACK_BIAS * np.cos(frequencies * distance)
        query[head, 1, : len(frequencies)] = -_LOOK_BACK_BIAS * np.sin(frequencies * distance)
    return query.ravel(), key.ravel()


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
