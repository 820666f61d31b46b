"""A base policy for `data=toolmath`, trained from random weights on generated text: what a pretrained model stands for.

    python -m benchmarks.learning.base runs/base-1 --seed 1

On one H100 it takes minutes, on two cores days: `--tokens 20000000 --layers 4 --hidden 128` is the size for a laptop.
The corpus is, by document, 48 % scratchpads (one in ten with a slip that is put right), 27 % programs with what they
print (no loops of the family search), 15 % bare answers and 10 % traces in the policy's format, half of them
programs. All of it is of the training split; no structure of an evaluation occurs. `--traces 0` leaves the last kind
out: a base that has never seen the format. `--calls 0.4` puts in documents of `data=calls`, too: training functions, a
request, and the calls as Python writes them, which no trace does. Every 50 of them the functions have other parameters.

Plain torch: the model is a few million parameters, for which Megatron's engine has nothing to split.
"""

import argparse
import hashlib
import json
import multiprocessing
import random
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from retool_mcore.data import function_tasks, toolmath
from retool_mcore.data.formats import TextFormat
from retool_mcore.data.prompts import render
from retool_mcore.data.segments import render_segments
from retool_mcore.data.tiny_model import EOS, build_tokenizer, make_tiny_model

MIX = {
    "chain_2_4_2": 0.1, "chain_5_8_3": 0.2, "chain_9_12_3": 0.12, "chainx_2_4_2": 0.16, "chainx_3_6_3": 0.16,
    "search": 0.1, "product": 0.08, "largest": 0.08,
}  # fmt: skip
KINDS = {"scratchpad": 0.48, "program": 0.27, "answer": 0.15, "trace": 0.10}
ROW = 512  # tokens
SHARD = 20_000  # documents
SIGNED = 50  # of data=calls in a row, after which every function has other parameters: they are read, not known
_SLIPS = 0.1
_CALLS = {"calls_1": 0.4, "calls_2": 0.35, "calls_3": 0.25}


def _document(rng: random.Random, kind: str) -> str:
    while True:
        item = toolmath.draw(rng.choices(list(MIX), list(MIX.values()))[0], rng)
        if toolmath.bucket(item.structure) in toolmath.SPLITS["train"] and not (
            kind == "program" and item.family == "search"
        ):
            break
    boxed = rf"\boxed{{{item.answer}}}"
    if kind == "program":
        return f"{item.program}\n>>>{item.answer}"
    if kind == "answer":
        return f"{item.question}\n{boxed}"
    lines = item.scratchpad.splitlines(keepends=True)
    if lines and rng.random() < _SLIPS:
        place = rng.randrange(len(lines))
        head, last = lines[place].rsplit("=", 1) if "=" in lines[place] else (lines[place], "")
        if last.strip().lstrip("-").isdecimal() and item.family != "product":
            wrong = int(last) + rng.choice((-100, -10, -2, -1, 1, 2, 10, 100))
            lines.insert(place, f"{head}={wrong}?\n")
    return f"{item.question}\n{''.join(lines)}{boxed}"


def _called(row: dict) -> str:
    """A row of data=calls as a document: what is listed, the request, and its calls in Python's notation."""
    listed = " ".join(f"{tool['name']}({', '.join(tool['parameters'])})" for tool in json.loads(row["tools"]))
    calls = [
        f"{call['name']}({', '.join(f'{name}={value!r}' for name, value in call['arguments'].items())})"
        for call in json.loads(row["answers"])
    ]
    return "\n".join([listed, row["query"], *calls])


def _shard(job: tuple[int, int, float, float]) -> np.ndarray:
    """The tokens of SHARD documents, (tokens,) uint16, each ended by EOS."""
    from transformers import AutoTokenizer

    seed, number, calls, traces = job
    rng = random.Random(f"base-{seed}-{number}")
    tokenizer = build_tokenizer()
    end = tokenizer.token_to_id(EOS)
    # The others keep their ratios.
    shares = KINDS | {"trace": traces} | ({"calls": calls / (1 - calls)} if calls else {})
    kinds = rng.choices(list(shares), list(shares.values()), k=SHARD)
    texts = [_document(rng, kind) for kind in kinds if kind in KINDS and kind != "trace"]
    for part in range(kinds.count("calls") // SIGNED):
        name = f"base-{seed}-{number}-{part}"
        rows = function_tasks.call_rows(SIGNED, name, "train", _CALLS, near=0.7, signatures=name)
        texts += [_called(row) for row in rows]
    function_tasks.call_functions.cache_clear()
    documents = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    with tempfile.TemporaryDirectory() as folder:
        form = TextFormat(AutoTokenizer.from_pretrained(make_tiny_model(Path(folder) / "model", 1)))
    made = toolmath.items(kinds.count("trace"), f"base-{seed}-{number}", "train", MIX)
    for trace in toolmath.traces(made, number, code_share=0.5, failed_share=0.15):
        segments = [{"kind": s.kind, "text": s.text} for s in trace.segments]
        response, _, _ = render_segments(form, form.tokenizer, segments, None)
        documents.append(form.prompt_ids(render("tiny", trace.question), None) + response)
    rng.shuffle(documents)
    return np.concatenate([np.array([*document, end], dtype=np.uint16) for document in documents])


def corpus(seed: int, tokens: int, processes: int, calls: float = 0.0, traces: float = KINDS["trace"]) -> np.ndarray:
    """(rows, ROW) uint16 of at least `tokens` tokens; the same for a seed whatever the processes."""
    parts, found = [], 0
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for part in pool.imap(_shard, ((seed, number, calls, traces) for number in range(10_000))):
            parts.append(part)
            found += len(part)
            if found >= tokens:
                pool.terminate()
                break
    joined = np.concatenate(parts)[:tokens]
    return joined[: len(joined) // ROW * ROW].reshape(-1, ROW)


def sizes(layers: int, hidden: int) -> dict:
    """Of a Qwen2 with heads of 64 dimensions, two to a key-value head: what its config.json has other than the tiny
    model's. Sizes are multiples of 128, the blocks of FP8."""
    heads = hidden // 64
    return {
        "hidden_size": hidden, "intermediate_size": hidden * 8 // 3 // 128 * 128, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": max(1, heads // 2), "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }  # fmt: skip


def train(rows: np.ndarray, config: dict, seed: int, batch: int, lr: float, device: str, eager: bool):
    """Next-token training with AdamW, warm-up and cosine; returns the model and the losses of every hundredth step."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.float32).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.05)
    steps = len(rows) // batch
    warm_up = max(1, steps // 30)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / warm_up, 0.1 + 0.45 * (1 + np.cos(np.pi * min(1.0, s / steps)))),
    )
    order = np.random.default_rng(seed).permutation(len(rows))
    stepped = model if eager or device == "cpu" else torch.compile(model)
    losses, start = [], time.monotonic()
    for step in range(steps):
        ids = torch.from_numpy(rows[order[step * batch : (step + 1) * batch]].astype(np.int64)).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = stepped(input_ids=ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == steps - 1:
            losses.append(round(float(loss), 4))
            done = (step + 1) * batch * ROW
            print(
                f"step {step + 1}/{steps} loss {losses[-1]} {done / (time.monotonic() - start):,.0f} tokens/s",
                flush=True,
            )
    return model, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=160_000_000)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128, help=f"rows of {ROW} tokens an optimizer step")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--calls", type=float, default=0.0, help="share of the documents that are of data=calls")
    parser.add_argument("--traces", type=float, default=KINDS["trace"], help="weight of traces in the policy's format")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    parser.add_argument("--processes", type=int, default=max(1, multiprocessing.cpu_count() - 1))
    arguments = parser.parse_args()
    import torch

    start = time.monotonic()
    rows = corpus(arguments.seed, arguments.tokens, arguments.processes, arguments.calls, arguments.traces)
    print(f"corpus: {rows.size:,} tokens in {time.monotonic() - start:.0f} s", flush=True)
    # Its tokenizer and template; its weights are replaced, and the folder has its name once they are.
    out = make_tiny_model(arguments.out.with_name(arguments.out.name + ".part"), arguments.seed)
    config = json.loads((out / "config.json").read_text()) | sizes(arguments.layers, arguments.hidden)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, losses = train(rows, config, arguments.seed, arguments.batch, arguments.lr, device, arguments.eager)
    for name in ("tiny_model.json", "model.safetensors"):
        (out / name).unlink()
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    model.to(torch.bfloat16).save_pretrained(out / "weights")
    shutil.move(out / "weights/model.safetensors", out / "model.safetensors")
    shutil.rmtree(out / "weights")
    recipe = {k: str(v) for k, v in vars(arguments).items() if k not in ("out", "processes")}
    digest = hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()
    told = {"recipe": recipe, "parameters": sum(p.numel() for p in model.parameters()), "sha256": digest}
    told |= {"losses": losses, "seconds": round(time.monotonic() - start), "torch": torch.__version__}
    (out / "base.json").write_text(json.dumps(told, indent=1) + "\n")
    out.rename(arguments.out)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
