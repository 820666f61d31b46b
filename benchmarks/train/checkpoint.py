"""What saving costs a step of SFT: without a save, and with one.

    python -m benchmarks.train.checkpoint                        # two cores, the tiny model's layout
    python -m benchmarks.train.checkpoint --hidden 2048 --layers 16 parallel=1gpu     # further words go to `retool sft`

Runs `retool sft` twice in one go, with a random Qwen2 policy of a chosen size, and compares seconds a step over
the same steps, everything in between included.
The first steps, up to the first save and the one after it, are left out: they start helpers and warm up.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import provenance
from benchmarks.rollout.startup import RETOOL

MODES = {"none": ("train.save_every=1000000",), "sync": ()}
PACKAGES = ("torch", "megatron-core", "verl", "mbridge", "safetensors")
# Also where the package is not installed.


def make_policy(tiny: Path, folder: Path, hidden: int, layers: int) -> int:
    """A random policy with the tiny model's tokenizer in `folder`; returns its number of parameters."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(folder)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = hidden, 4 * hidden, layers
    if hidden % 64 == 0:  # heads that a GPU's kernels know
        config.num_attention_heads = config.num_key_value_heads = hidden // 64
        config.head_dim = 64
    # The tiny model's config may name a layer type for each of its layers.
    config.layer_types = ["full_attention"] * layers
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def run(stage: str, runs: Path, name: str, *overrides: str) -> Path:
    command = [*RETOOL, stage, f"name={name}", f"runs_dir={runs}", *overrides]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return runs / name


def seconds_of(stage_dir: Path, save_every: int) -> dict[str, list[float]]:
    """Of the steps after the first save's: "step", the seconds of each with its save before it; and of each of those
    saves "pause", what the step waited, and "complete", until it was whole."""
    lines = (stage_dir / "metrics/attempt_001.jsonl").read_text().splitlines()
    data = {record["step"]: record["data"] for record in map(json.loads, lines) if "train/loss" in record["data"]}
    steps = [data[step] for step in sorted(data) if step > save_every + 1]
    saves = [step for step in steps if "checkpoint/bytes" in step]
    return {
        "step": [step["timing/step_seconds"] + step["timing/save_seconds"] for step in steps],
        "pause": [save["checkpoint/pause_s"] for save in saves],
        "complete": [save["checkpoint/complete_s"] for save in saves],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384, help="hidden size, a multiple of 8 (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=4, help="(default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="sequences a step (default: %(default)s)")
    parser.add_argument("--save-every", type=int, default=5, help="steps (default: %(default)s)")
    parser.add_argument("--saves", type=int, default=3, help="saves that are measured (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=provenance.RESULTS / "checkpoint.json")
    parser.add_argument("overrides", nargs="*", help="further words for `retool sft`, such as parallel=1gpu")
    args = parser.parse_args()
    steps = args.save_every * (args.saves + 2)  # one save before, and one at the end that no step comes after
    with tempfile.TemporaryDirectory() as scratch:
        runs = Path(scratch)
        common = ["data.arithmetic.sft=400", "data.arithmetic.train=40", "data.arithmetic.validation=40"]
        prepared = run("prepare", runs, "prepared", *common)
        parameters = make_policy(prepared / "model", runs / "policy", args.hidden, args.layers)
        common += [f"model.path={runs / 'policy'}", "model.make=false", f"train.steps={steps}", "train.warmup_steps=2"]
        common += [f"train.batch={args.batch}", "train.keep_best=null", "train.eval_every=1000000"]
        common += [f"train.save_every={args.save_every}", "train.keep_checkpoints=1", *args.overrides]
        measured, load = {}, {}
        head = provenance.made(PACKAGES, device=provenance.gpus())
        for mode, overrides in MODES.items():
            (runs / mode).mkdir()
            (runs / mode / "data").symlink_to(prepared / "data")
            load[mode] = round(os.getloadavg()[0], 1)
            stage_dir = run("sft", runs, mode, *common, *overrides) / "sft"
            measured[mode] = seconds_of(stage_dir, args.save_every)
            last = stage_dir / f"checkpoints/global_step_{steps}"
            size = sum(path.stat().st_size for path in last.rglob("*") if path.is_file())
            shutil.rmtree(stage_dir / "checkpoints")  # those of a large policy fill a disk
    step, save, complete = (
        {mode: statistics.mean(found[name]) for mode, found in measured.items() if found[name]}
        for name in ("step", "pause", "complete")
    )
    ratios = {"sync": step["sync"] / step["none"]}
    print(f"{parameters / 1e6:.1f} M parameters, checkpoint of {size / 1e6:.0f} MB every {args.save_every} steps")
    for mode, seconds in step.items():
        print(f"{mode:>5}: {seconds:.3f} s a step")
        if mode in save:
            print(f"       a save holds it up {save[mode]:.2f} s, COMPLETE after {complete[mode]:.2f} s")
    print(f"a step against one without saves: {ratios['sync']:.2f} x")
    result = {
        "load_before": load,
        "parameters": parameters,
        "checkpoint_bytes": size,
        "save_every": args.save_every,
        "seconds_a_step": step,
        "seconds_a_save_holds_up": save,
        "seconds_to_complete": complete,
        "saves": {mode: found["pause"] for mode, found in measured.items() if found["pause"]},
        "step_against_none": ratios,
    }
    provenance.write(args.output, head, result)


if __name__ == "__main__":
    main()
