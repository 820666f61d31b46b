"""A policy of a true Qwen2.5 shape whose weights make it call the interpreter, with prompts for it.

    python -m benchmarks.rollout.scripted_policy OUT 7b          # or tiny, 1.5b, 32b, 32b-half
    python -m benchmarks.rollout.scripted_policy OUT 7b --random # plain random weights
    python -m benchmarks.rollout.scripted_policy OUT 0.5b --trace slow-tools  # lengths and programs of traces.py

No trained weights can be had on a machine without a network, and random ones never call a tool. So the embedding and
the output matrix hold a Markov chain over tokens (prose -> program -> prose ... -> answer), with random attention and
MLP weights around it that change the logits only slightly. It knows nothing; but it samples from its own logits, with
real log-probabilities, real programs and responses of very different lengths, and every kernel does the work of the
true shape. Vocabulary entries that the chain uses are whole strings, so that one token is one program.
"""

import argparse
import json
import random
from collections import defaultdict
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from benchmarks.rollout.traces import TRACES, Trace, call_text
from retool_mcore.data.schema import RL_SCHEMA, write_parquet

#         hidden  ffn  layers heads kv vocab
SHAPES = {
    "tiny": (64, 128, 2, 4, 2, 2048),
    "0.5b": (896, 4864, 24, 14, 2, 151936),
    "1.5b": (1536, 8960, 28, 12, 2, 151936),
    "7b": (3584, 18944, 28, 28, 4, 152064),
    "32b": (5120, 27648, 64, 40, 8, 152064),
    "32b-half": (5120, 27648, 32, 40, 8, 152064),
    "32b-quarter": (5120, 27648, 16, 40, 8, 152064),
}
PROGRAMS = [
    "print(sum(i * i for i in range(1000)))",
    "from math import comb\nprint([comb(20, k) for k in range(21)])",
    "def f(n):\n    return n if n < 2 else f(n - 1) + f(n - 2)\nprint(f(18))",
    "print([p for p in range(2, 200) if all(p % q for q in range(2, p))])",
    "from fractions import Fraction\nprint(sum(Fraction(1, n) for n in range(1, 30)))",
    "x = 10\nprint(1 / (x - 10))",
    "import itertools\nprint(sum(1 for p in itertools.permutations(range(7)) if p[0] < p[-1]))",
    "print(undefined_name)",
]
PROSE = 1000  # tokens of prose
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (  # format hermes asks that a template lists tools; the chain calls the interpreter without reading so
    "{% if tools %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LOGIT, FLOOR = 7.0, -17.0  # of log P = 0, and of a token that the chain never takes: small numbers, for bfloat16's sake


def byte_level(text: str) -> str:
    """`text` as a byte-level vocabulary spells it."""
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return "".join(piece for piece, _ in pieces)


def make_tokenizer(vocab: int, trace: Trace | None = None) -> tuple[PreTrainedTokenizerFast, dict[str, list[int]]]:
    """(a byte tokenizer of exactly `vocab` entries, the ids of each class of the chain)."""
    ids = {token: number for number, token in enumerate(SPECIAL + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    classes: dict[str, list[int]] = defaultdict(list)

    def add(kind: str, text: str) -> None:
        ids[byte_level(text)] = len(ids)
        classes[kind].append(len(ids) - 1)

    if trace is None:
        add("open", "<code>")
        add("close", "</code>")
    for program in (trace and trace.programs()) or PROGRAMS:
        add(*(("call", call_text(program)) if trace else ("program", f"\n```python\n{program}\n```\n")))
    for digit in range(10):
        add("answer", f"The answer is \\boxed{{{digit}}}.")
    for number in range(PROSE):
        add(("short", "long")[number % 2] if trace else "prose", f" word{number}")
    ids |= {f"tok{number}": number for number in range(len(ids), vocab)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = TEMPLATE
    classes["end"] = [fast.eos_token_id]
    return fast, classes


def make_config(shape: str, tokenizer) -> Qwen2Config:
    hidden, ffn, layers, heads, kv, vocab = SHAPES[shape]
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        max_position_embeddings=32768,
        rope_theta=1e6,
        tie_word_embeddings=False,
        rms_norm_eps=1e-6,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype=torch.bfloat16,
    )
    config.architectures = ["Qwen2ForCausalLM"]
    return config


def transitions(turn_tokens: float, calls: float) -> dict[str, dict[str, float]]:
    """P(class of the next token | class of this one). A response has about `calls` calls, turns of `turn_tokens`."""
    leave = 1 / turn_tokens
    answer = 1 / (1 + calls)
    return {
        "prose": {"prose": 1 - leave, "open": leave * (1 - answer), "answer": leave * answer},
        "open": {"program": 1.0},
        "program": {"close": 1.0},
        "answer": {"end": 1.0},
    }


@torch.no_grad()
def plant(model: Qwen2ForCausalLM, classes: dict[str, list[int]], chain: dict[str, dict[str, float]]) -> None:
    """Write the chain into embedding and output matrix, and quieten what the layers add to the residual stream."""
    embedding, head = model.model.embed_tokens.weight, model.lm_head.weight
    vocab, hidden = embedding.shape
    device = embedding.device
    states = [*chain]  # every other token (a prompt's, an observation's) is read as the first
    directions = torch.linalg.qr(torch.randn(hidden, len(states), device=device))[0].T  # (states, hidden) orthonormal
    of_token = torch.zeros(vocab, dtype=torch.long, device=device)
    logits = torch.full((vocab, len(states)), FLOOR, device=device)
    for number, state in enumerate(states):
        of_token[classes[state]] = number
        for kind, probability in chain[state].items():
            share = torch.tensor(probability / len(classes[kind]))
            logits[classes[kind], number] = LOGIT + share.log().item()
    for start in range(0, vocab, 8192):
        rows = slice(start, min(start + 8192, vocab))
        noise = torch.randn(rows.stop - start, hidden, device=device)
        noise -= noise @ directions.T @ directions
        noise /= noise.norm(dim=1, keepdim=True)
        size = hidden**0.5
        along = directions[of_token[rows]]
        embedding[rows] = (size * (0.95 * along + 0.3122 * noise)).to(embedding.dtype)
        # After the final norm a token's vector has length sqrt(hidden), 0.95 of it along its state.
        planted = logits[rows] @ directions / (0.95 * size)
        head[rows] = (planted + 0.12 / size * torch.randn(rows.stop - start, hidden, device=device)).to(head.dtype)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.02)
        layer.mlp.down_proj.weight.mul_(0.02)


def rows(count: int, split: str) -> list[dict]:
    draw = random.Random(split)
    found = []
    for index in range(count):
        question = f"What is the last digit of {draw.randint(100, 999)} * {draw.randint(100, 999)}?"
        found.append(
            {
                "data_source": "scripted",
                "prompt": [{"role": "user", "content": question}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(draw.randint(0, 9))},
                "extra_info": {"index": index, "split": split, "question": question},
                "agent_name": "retool",
            }
        )
    return found


def make(
    out: Path, shape: str, chain: dict[str, dict[str, float]] | None, device: str, trace: Trace | None = None
) -> None:
    """Write the model folder and train.parquet, validation.parquet beside its files. chain: None leaves the weights
    random; trace: whose classes and programs the chain has."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer, classes = make_tokenizer(SHAPES[shape][-1], trace)
    tokenizer.save_pretrained(out)
    config = make_config(shape, tokenizer)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        if chain is not None:
            plant(model, classes, chain)
    model.save_pretrained(out, max_shard_size="4GB")
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    GenerationConfig(eos_token_id=end, pad_token_id=pad).save_pretrained(out)
    write_parquet(rows(2048, "train"), RL_SCHEMA, out / "train.parquet")
    write_parquet(rows(16, "validation"), RL_SCHEMA, out / "validation.parquet")
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"shape": shape, "parameters": parameters, "tokenizer": len(tokenizer)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--random", action="store_true", help="leave the random weights as they are")
    parser.add_argument("--trace", choices=TRACES, help="lengths, calls and programs of traces.py, in format hermes")
    parser.add_argument("--turn-tokens", type=float, default=400.0, help="mean length of a turn")
    parser.add_argument("--calls", type=float, default=2.5, help="mean number of calls in a response without a limit")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    trace = TRACES.get(given.trace)
    chain = trace.chain() if trace else transitions(given.turn_tokens, given.calls)
    make(given.out, given.shape, None if given.random else chain, given.device, trace)


if __name__ == "__main__":
    main()
