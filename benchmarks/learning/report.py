"""The claims of plan.yaml, judged on what its runs left: every pair, the interval and the verdict.

    python -m benchmarks.learning.report runs/learning             reads the run folders, writes the results file
    python -m benchmarks.learning.report                           the table of the results file as it is

A run that did not come to its end counts with its start's accuracy. Nothing is run again, no seed is added.
"""

import argparse
import json
import statistics
from pathlib import Path

from omegaconf import OmegaConf
from scipy import stats

from benchmarks import provenance

PLAN = OmegaConf.load(Path(__file__).with_name("plan.yaml"))
OUT = provenance.RESULTS / "learning.json"
CURVES = ("reward/accuracy", "behaviour/code_ratio", "behaviour/response_length", "mismatch/kl")


def read(run: Path) -> dict:
    """A run's steps, its accuracy by family before and after, and its curves over the steps."""
    lines = [json.loads(line)["data"] for line in sorted(run.glob("rl/metrics/*.jsonl"))[-1].read_text().splitlines()]
    told: dict = {"steps": sum("reward/accuracy" in line for line in lines), "start": None, "end": None}
    for place, line in enumerate(lines):
        if "val/accuracy" in line:
            families = {key.split("/")[1]: round(v, 4) for key, v in line.items() if _of_a_family(key)}
            told["start" if place == 0 else "end"] = {"all": round(line["val/accuracy"], 4)} | families
    told["curves"] = {k: [round(line[k], 5) for line in lines if k in line] for k in CURVES}
    return told


def _of_a_family(key: str) -> bool:
    return key.startswith("val/") and key.endswith("/accuracy") and key.count("/") == 2


def judge(runs: dict[str, dict]) -> list[dict]:
    """One row a claim: the differences in points of its pairs, their mean with a 95 % t-interval, and the verdict."""
    starts, ends = {}, {}
    for name, run in runs.items():
        base, arm, seed = name.split("-")
        if run["start"]:
            starts[base, arm] = run["start"]["all"]
        ends[base, arm, seed] = run["end"] and run["end"]["all"]
    value = {key: end if end is not None else starts[key[:2]] for key, end in ends.items()}
    start_of = {"D": "A", "E": "C"}
    found = []
    for name, claim in PLAN.claims.items():
        differences = []
        for base, arm, seed in value:
            if arm == claim.better:
                others = [starts[base, start_of[o]] if o in start_of else value[base, o, seed] for o in claim.worse]
                differences.append(round(100 * (value[base, arm, seed] - max(others)), 2))
        mean, deviation = statistics.mean(differences), statistics.stdev(differences)
        half = stats.t.ppf(0.975, len(differences) - 1) * deviation / len(differences) ** 0.5
        met = mean >= claim.points and all(d > 0 for d in differences)
        row = {"claim": name, "criterion": f"{claim.better} - max({', '.join(claim.worse)}) >= {claim.points}"}
        row |= {
            "pairs": differences,
            "mean": round(mean, 2),
            "interval": [round(mean - half, 2), round(mean + half, 2)],
        }
        found.append(row | {"met": bool(met)})
    return found


def table(rows: list[dict]) -> str:
    lines = ["| claim | criterion, points | pairs | mean [95 %] | met |", "|---|---|---|---|---|"]
    for row in rows:
        pairs = ", ".join(f"{d:+.1f}" for d in row["pairs"])
        low, high = row["interval"]
        met = "yes" if row["met"] else "no"
        lines.append(
            f"| {row['claim']} | {row['criterion']} | {pairs} | {row['mean']:+.1f} [{low:+.1f}, {high:+.1f}] | {met} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    if arguments.runs:
        packages = ("torch", "verl", "vllm", "ray", "megatron-core", "transformers")
        head = provenance.made(packages, device=provenance.gpus())
        runs = {run.name: read(run) for run in sorted(arguments.runs.glob("b*-?-s*"))}
        provenance.write(arguments.out, head, {"runs": runs, "claims": judge(runs)})
    print(table(judge(json.loads(arguments.out.read_text())["runs"])))


if __name__ == "__main__":
    main()
