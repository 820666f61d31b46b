"""The runs of a plan, side by side: cold starts, then RL of every arm, base and seed.

    python -m benchmarks.learning.arms sft runs/learning --bases runs/base-1 --gpus 1 --beside 2 parallel=1gpu
    python -m benchmarks.learning.arms rl runs/learning --bases runs/base-1 --gpus 1 --beside 12 parallel=1gpu

`--plan plan_calls.yaml` takes that plan of this folder in place of plan.yaml. A base's folder ends in its number; an
arm runs from the plan's `bases`, or from the list that it names, and `without` leaves out a part of the method
(without.py). The task's files are made once, in RUNS/task. A run is a run folder as of any command: RUNS/b1-mixed holds
base 1's cold start `mixed`, RUNS/b1-A-s2 arm A from it with seed 2. What is complete is not run again. `report.py`
reads them.
"""

import argparse
import itertools
import subprocess
import sys
from pathlib import Path

from omegaconf import OmegaConf

from examples.real_model.together import command, run_all

# Several runs share a machine: one worker of each kind, a cache that vLLM does not measure beside its neighbours, and
# no sleep, after which it would take their memory for its own.
SHARED = [
    "parallel.agent_workers=1", "parallel.reward_workers=1", "parallel.loader_workers=0",
    "parallel.gpu_memory_utilization=0.1", "parallel.rollout.max_num_batched_tokens=4096", "sandbox.workers=2",
    "parallel.rollout.enable_sleep_mode=false", "parallel.rollout.free_cache_engine=false",
    "+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=1500000000",
]  # fmt: skip
ON_GPU = [  # a decoding step is one CUDA graph: launching its kernels one by one keeps a core busy
    "parallel.rollout.enforce_eager=false",
    "verl.actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,8,16,32,64,96,128,160,192,224,256]",
    "+verl.actor_rollout_ref.rollout.engine_kwargs.vllm.compilation_config="
    """'{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY"}'""",
]


def read_plan(name: str):
    """The plan of that name, of this folder; each is fixed before its first run that counts."""
    return OmegaConf.load(Path(__file__).with_name(name))


def jobs(
    plan, stage: str, runs: Path, bases: list[Path], seeds: list[int], gpus: int, words: list[str]
) -> list[tuple[str, list[list[str]]]]:
    """(name of the run, its commands), those of one arm in a row."""
    folder = runs / "task/data"
    task = [f"data.train_files={folder}/rl_train.parquet", f"data.held_back_files={folder}/rl_held_back.parquet"]
    found = []
    numbered = [(int(base.name.rsplit("-", 1)[1]), base) for base in bases]
    if stage == "sft":
        for number, base in numbered:
            for start, own in plan.starts.items():
                both = [*plan.task.words, f"seed={plan.task.seed}", f"model={base}", *own, *words]
                name = f"b{number}-{start}"
                found.append((name, [command("prepare", runs, name, both), command("sft", runs, name, both)]))
        return found
    for arm, what in plan.arms.items():
        from_these = [(number, base) for number, base in numbered if number in plan[what.get("bases", "bases")]]
        for seed, (number, base) in itertools.product(seeds, from_these):
            start = f"{runs}/b{number}-{what.start}/sft/policy" if what.start else base
            own = [f"seed={seed}", f"model={base}", f"init_from={start}"]
            own += [*task, *plan.task.words, *plan.rl, *what.words, *SHARED, *(ON_GPU if gpus else ()), *words]
            # One measures the start, which all share.
            if seed == seeds[0] and "train.eval_every=-1" not in [*plan.rl, *what.words]:
                own.append("verl.trainer.val_before_train=true")
            name = f"b{number}-{arm}-s{seed}"
            found.append((name, [command("rl", runs, name, own, what.get("without"))]))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=["sft", "rl"])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--bases", type=Path, nargs="+", required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--beside", type=int, default=1, help="runs at once")
    parser.add_argument("--stagger", type=float, default=4.0, help="seconds between the first starts")
    parser.add_argument("--seeds", type=int, nargs="+", help="without it the plan's; 100 and above to calibrate")
    parser.add_argument("--plan", default="plan.yaml")
    parser.add_argument("--only", default="", help="runs whose name contains one of these: F-s,N-s")
    parser.add_argument("--mps", type=Path, metavar="FOLDER", help="with a folder for each GPU: its MPS server's pipes")
    arguments, words = parser.parse_known_args()
    plan = read_plan(arguments.plan)
    seeds = arguments.seeds or list(plan.seeds)
    runs, bases = arguments.runs.resolve(), [base.resolve() for base in arguments.bases]
    if arguments.stage == "rl":
        task = [*plan.task.words, f"seed={plan.task.seed}", f"model={bases[0]}"]
        subprocess.run(command("prepare", runs, "task", task), check=True)
    found = [
        job
        for job in jobs(plan, arguments.stage, runs, bases, seeds, arguments.gpus, words)
        if any(part in job[0] for part in arguments.only.split(","))
    ]
    return run_all(found, runs, arguments.gpus, arguments.beside, arguments.stagger, arguments.mps)


if __name__ == "__main__":
    sys.exit(main())
