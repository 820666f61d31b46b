"""An engine with FP8 weights, and with an FP8 cache, beside one in bfloat16: tokens/s of a 7B's shape.

    python -m benchmarks.rollout.fp8                          the three kinds, one after the other, on one GPU
    python -m benchmarks.rollout.fp8 --kinds bfloat16 fp8     some of them; results are added to the file

Weights are random, quantised as verl does it in a run (`verl.actor_rollout_ref.rollout.quantization=fp8`: blocks of 128
x 128, activations as they come). Prompts of 64 tokens, responses of 512, all full. What FP8 does to learning:
`python -m benchmarks.learning.report --plan plan_parts.yaml`. Predicted before the first run: FP8 weights 1.5 times at
16 sequences, 1.4 at 64 and 1.2 at 256, where the cache is read more than the weights; with the cache 1.3 there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import provenance

SHAPE = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064,
    "max_position_embeddings": 4096, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
WEIGHTS = {"quantization": "fp8", "hf_overrides": {"quantization_config": BLOCKS}}
KINDS = {"bfloat16": {}, "fp8": WEIGHTS, "fp8 and cache": WEIGHTS | {"kv_cache_dtype": "fp8"}}
PROMPT, RESPONSE, AT_ONCE = 64, 512, (16, 64, 256)


def measure(kind: str) -> dict:
    """{sequences at once: [tokens/s, two rounds]}, in this process."""
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(SHAPE))
        clock = time.monotonic()
        engine = LLM(
            folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", max_model_len=1024,
            gpu_memory_utilization=0.8, enable_prefix_caching=False, disable_log_stats=True, **KINDS[kind],
        )  # fmt: skip
        told: dict = {"start_s": round(time.monotonic() - clock, 1)}
        sampling = SamplingParams(max_tokens=RESPONSE, ignore_eos=True, detokenize=False)
        for number in AT_ONCE:
            prompts = [
                {"prompt_token_ids": [100 + (row * 7 + n) % 900 for n in range(PROMPT)]} for row in range(number)
            ]
            rounds = []
            for _ in range(2):
                clock = time.monotonic()
                done = engine.generate(prompts, sampling, use_tqdm=False)
                rounds.append(round(sum(len(d.outputs[0].token_ids) for d in done) / (time.monotonic() - clock)))
            told[str(number)] = rounds
        return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path, default=provenance.RESULTS / "rollout_fp8.json")
    parser.add_argument("--here", choices=KINDS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.here)))
        return
    head = provenance.made(("torch", "vllm", "verl"), device=provenance.gpus())
    found = json.loads(given.out.read_text())["engines"] if given.out.is_file() else {}
    for kind in given.kinds:
        command = [sys.executable, "-m", "benchmarks.rollout.fp8", "--here", kind]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[kind] = json.loads(done.stdout.splitlines()[-1])
        provenance.write(given.out, head, {"engines": found})
        base = found.get("bfloat16")
        ratios = {n: round(max(found[kind][str(n)]) / max(base[str(n)]), 2) for n in AT_ONCE} if base else {}
        print(f"{kind}: {found[kind]}, of bfloat16's: {ratios}", flush=True)


if __name__ == "__main__":
    main()
