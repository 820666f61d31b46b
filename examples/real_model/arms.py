r"""Run the study: data, cold starts, RL of every arm and seed.

    python -m examples.real_model.arms MODEL runs/real_model --gpus 1 --at-once 4

MODEL is a Hugging Face folder, as `python -m examples.smollm2.convert` writes one. Needs reasoning-gym. Several runs
share a GPU. What is complete does not run again. `retool compare examples/real_model/plan.yaml` judges the runs.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.real_model.families import EASY, HARDER, TRAINED, UNSEEN, sections
from examples.real_model.together import Job, command, run_all

PROMPTS = {
    "text": r'data.prompt="{question} You may run Python in <code> tags. Put the final answer in \boxed{}."',
    "none": r'data.prompt="{question} Put the final answer in \boxed{}."',
}
LIMITS = [
    "rollout.max_prompt_tokens=512", "rollout.max_response_tokens=256", "rollout.max_observation_tokens=48",
    "rollout.max_turns=3",
]  # fmt: skip
PROBLEMS = ["data=reasoning_gym", "seed=7", "data.reasoning_gym.test=400", "parallel=1gpu"]
SFT = [
    "data.sft.batch=32", "data.sft.epochs=3", "data.sft.lr=1e-4", "data.sft.min_lr=1e-5",
    "data.sft.warmup_steps=4", "data.sft.max_length=768", "train.save_every=-1", "train.eval_every=-1",
    "train.keep_best=null",
]  # fmt: skip
RL = [
    "data=reasoning_gym", "recipe.reward.name=reasoning_gym", "correction=disabled", "data.rl.batch=64", "data.rl.n=8",
    "data.rl.mini_batch=16", "data.rl.steps=30", "data.rl.lr=2e-5", "data.rl.warmup_steps=2", "train.eval_every=15",
    "train.eval_samples=2", "train.eval_share=1", "train.save_every=-1",
    "train.keep_best=null",  # the last policy counts, never the best
]  # fmt: skip
# Runs that share a GPU: one worker of each kind, a cache of a fixed size, and no sleep, after which vLLM would take the
# neighbours' memory for its own. A decoding step is one CUDA graph: launching its kernels one by one keeps a core busy.
SHARED = [
    "parallel=1gpu", "parallel.agent_workers=1", "parallel.reward_workers=1", "parallel.loader_workers=0",
    "parallel.gpu_memory_utilization=0.1", "parallel.micro_batch_tokens=8192", "sandbox.workers=3",
    "parallel.rollout.max_num_batched_tokens=8192", "parallel.rollout.enable_sleep_mode=false",
    "parallel.rollout.free_cache_engine=false", "parallel.rollout.enforce_eager=false",
    "+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=4000000000",
    "verl.actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,8,16,32,64,96,128,160,192,224,256,384,512]",
    "+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config="
    """'{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'""",
]  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """Settings of an arm. start: the traces of its cold start, None without one; without: the part of the method that
    benchmarks/learning/without.py leaves out; before: whether its start is validated."""

    start: str | None
    format: str = "text"
    words: Sequence[str] = ()
    without: str | None = None
    before: bool = False


OTC = "{max_calls:3,alpha:1.0}"
ARMS = {  # in the order in which they start
    "tool": Arm("tool", before=True),
    "text": Arm("text", format="none", before=True),
    "efficient": Arm("tool", words=["recipe.group_reward.name=otc_grpo", f"recipe.group_reward.args={OTC}"]),
    "unmasked": Arm("tool", without="mask"),
    "small": Arm("small", before=True),
    "instruct": Arm(None, before=True),  # no cold start; carries no claim
}
SEEDS = {arm: (1,) if arm == "instruct" else (1, 2, 3) for arm in ARMS}
STARTS = {"tool": ("tool.jsonl", "text"), "text": ("text.jsonl", "none"), "small": ("small.jsonl", "text")}


def data_jobs(runs: Path, model: list[str]) -> list[Job]:
    """Return the jobs that draw the problems, those trained on and the others, for both prompts."""
    jobs = []
    for form, prompt in PROMPTS.items():
        common = [*model, *PROBLEMS, prompt, f"rollout.format={form}", *LIMITS]
        own = [f"data.reasoning_gym.families={sections(TRAINED, EASY)}", "data.reasoning_gym.train=3200"]
        own.append("data.reasoning_gym.held_back=200")
        others = [f"data.reasoning_gym.families={sections(HARDER, UNSEEN)}", "data.reasoning_gym.train=64"]
        others.append("data.reasoning_gym.held_back=160")
        jobs.append((f"data-{form}", [command("prepare", runs, f"data-{form}", [*common, *own])]))
        jobs.append((f"data-{form}-others", [command("prepare", runs, f"data-{form}-others", [*common, *others])]))
    return jobs


def sft_jobs(runs: Path, model: list[str], traces: Path, asked: Sequence[str]) -> list[Job]:
    """Return the cold starts that the RL runs of these names begin with."""
    arms = [name.rsplit("-s", 1) for name in asked]
    jobs = []
    for start, (file, form) in STARTS.items():
        for seed in sorted({int(seed) for arm, seed in arms if ARMS[arm].start == start}):
            data = [*model, "data=file", *LIMITS, PROMPTS[form], f"rollout.format={form}", f"seed={seed}"]
            data += [f"data.file.sft={traces / file}", "parallel=1gpu"]
            name = f"start-{start}-s{seed}"
            jobs.append((name, [command("prepare", runs, name, data), command("sft", runs, name, [*data, *SFT])]))
    return jobs


def rl_jobs(runs: Path, model: list[str], path: str, steps: list[str]) -> list[Job]:
    """Return RL of every arm and seed."""
    jobs = []
    for arm, own in ARMS.items():
        data = [runs / f"data-{own.format}{part}" / "data" for part in ("", "-others")]
        held_back = ",".join(str(folder / "rl_held_back.parquet") for folder in data)
        for seed in SEEDS[arm]:
            start = runs / f"start-{own.start}-s{seed}/sft/policy" if own.start else path
            words = [*model, *RL, *LIMITS, *SHARED, PROMPTS[own.format], f"rollout.format={own.format}", f"seed={seed}"]
            words += [f"init_from={start}", f"data.train_files={data[0] / 'rl_train.parquet'}"]
            words += [f"data.held_back_files=[{held_back}]", f"train.eval_before={str(own.before).lower()}"]
            name = f"{arm}-s{seed}"
            jobs.append((name, [command("rl", runs, name, [*words, *own.words, *steps], own.without)]))
    return jobs


def main() -> int:
    """Run what is asked for and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4, help="runs side by side, on all GPUs together")
    parser.add_argument("--stagger", type=float, default=2.0, help="seconds between the first starts")
    parser.add_argument("--only", default="", help="RL runs whose name contains one of these: tool-s,text-s1")
    parser.add_argument("--mps", type=Path, metavar="FOLDER", help="with a folder for each GPU: its MPS server's pipes")
    args, words = parser.parse_known_args()
    runs, path = args.runs.resolve(), str(args.model.resolve())
    model = ["model=folder", f"model.path={path}"]
    together = (runs, args.gpus, args.at_once, args.stagger, args.mps)
    failed = run_all(data_jobs(runs, model), *together)
    traces = runs / "traces"
    if not failed and not (traces / "small.jsonl").exists():
        make = [sys.executable, "-m", "examples.real_model.traces", str(traces), "--prepared", str(runs)]
        subprocess.run(make, check=True)
    found = [job for job in rl_jobs(runs, model, path, words) if any(part in job[0] for part in args.only.split(","))]
    starts = sft_jobs(runs, model, traces, [name for name, _ in found])
    if failed or run_all(starts, *together):
        return 1
    return int(run_all(found, *together) > 0)


if __name__ == "__main__":
    sys.exit(main())
