"""Does a run repeat itself after others of a sweep? A, B, A, B by launch/sweep.sh, compared step by step.

    ./launch/quickstart.sh && python -m benchmarks.learning.again runs/quickstart --work /tmp/again

A and B are two recipes on one cold start. In a sweep all their processes are forked from one template. Printed for both
recipes: the greatest difference between the two runs in a step's accuracy, the share of their trajectories that have
the same tokens, and the greatest difference between the weights that they end with, beside how far RL moved them.
"""

import argparse
import json
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks import provenance
from benchmarks.learning.report import read
from retool_mcore.metrics.records import read_columns, step_files

RECIPES = ("retool", "dapo")
ATTEMPTS = (5, 6)  # values of a key that changes nothing here, so that a recipe's runs are not one


def trajectories(run: Path) -> set[tuple]:
    """(step, problem, sample, tokens) of all."""
    rows = [
        row
        for path in step_files(run / "rl/trajectories").values()
        for row in read_columns(path, ["step", "index", "sample", "response_ids"]).to_pylist()
    ]
    return {(row["step"], row["index"], row["sample"], tuple(row["response_ids"])) for row in rows}


def furthest(first: Path, second: Path) -> float:
    """The greatest difference between two policies' weights."""
    one, other = (load_file(folder / "model.safetensors") for folder in (first, second))
    return max(float((one[name].float() - other[name].float()).abs().max()) for name in one)


def compared(first: Path, second: Path, start: Path) -> dict:
    curves = [read(run)["curves"]["reward/accuracy"] for run in (first, second)]
    seen = [trajectories(run) for run in (first, second)]
    return {
        "accuracy": curves[0],
        "accuracy_apart": max(abs(a - b) for a, b in zip(*curves, strict=True)),
        "same_trajectories": len(seen[0] & seen[1]) / len(seen[0]),
        "weights_apart": furthest(first / "rl/policy", second / "rl/policy"),
        "weights_moved": furthest(first / "rl/policy", start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder with a cold start")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args()
    head = provenance.made(("torch", "verl", "vllm", "ray", "megatron-core", "transformers"))
    run, work = given.run.resolve(), given.work.resolve()
    start = run / "sft/policy"
    words = [f"runs_dir={work}", f"init_from={start}", f"data.train_files={run}/data/rl_train.parquet"]
    words += [f"data.held_back_files={run}/data/rl_held_back.parquet", f"data.rl.steps={given.steps}"]
    over = [f"train.text_every={','.join(map(str, ATTEMPTS))}", f"recipe={','.join(RECIPES)}"]
    sweep = [provenance.ROOT / "launch/sweep.sh", "rl", "name=again", *words, "over", *over]
    subprocess.run(sweep, check=True)
    found = {}
    for recipe in RECIPES:
        runs = [work / f"again-text_every_{attempt}-recipe_{recipe}" for attempt in ATTEMPTS]
        found[recipe] = compared(*runs, start)
        print(f"{recipe}: {json.dumps(found[recipe])}")
    provenance.write(provenance.RESULTS / "again.json", head, {"steps": given.steps, "recipes": found})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
