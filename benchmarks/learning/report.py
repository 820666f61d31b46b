"""The claims of plan.yaml, judged on what its runs left: every pair, the interval and the verdict.

    python -m benchmarks.learning.report runs/learning             reads the run folders, writes the results file
    python -m benchmarks.learning.report                           the table of the results file as it is

A run that did not come to its end counts with its start's accuracy. Nothing is run again, no seed is added.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from omegaconf import OmegaConf
from scipy import stats

from benchmarks import provenance
from retool_mcore.metrics.records import read_columns, step_files

PLAN = OmegaConf.load(Path(__file__).with_name("plan.yaml"))
OUT = provenance.RESULTS / "learning.json"
CURVES = ("reward/accuracy", "behaviour/code_ratio", "behaviour/calls", "behaviour/response_length", "mismatch/kl")
EARLY, LATE = 2, 8  # steps whose trajectories tell what the policy does at the start, and at the end
_STEP = ("timing_s/step", "timing_s/gen")


def read(run: Path) -> dict:
    """A run's steps, its accuracy by family before and after, what it did early and late, and its curves."""
    lines = [json.loads(line)["data"] for line in sorted(run.glob("rl/metrics/*.jsonl"))[-1].read_text().splitlines()]
    told: dict = {"steps": sum("reward/accuracy" in line for line in lines), "start": None, "end": None}
    for place, line in enumerate(lines):
        if "val/accuracy" in line:
            families = {key.split("/")[1]: round(v, 4) for key, v in line.items() if _of_a_family(key)}
            told["start" if place == 0 else "end"] = {"all": round(line["val/accuracy"], 4)} | families
    files = list(step_files(run / "rl/trajectories").values())
    told |= {"early": behaviour(files[:EARLY]), "late": behaviour(files[-LATE:])}
    told["seconds"] = {k: round(statistics.median(line[k] for line in lines if k in line), 2) for k in _STEP}
    told["curves"] = {k: [round(line[k], 5) for line in lines if k in line] for k in CURVES}
    return told


def behaviour(files: list[Path]) -> dict[str, dict]:
    """By family, and for "all": trajectories, calls a trajectory, the share that calls, and the accuracy of those
    that call and of those that do not (None: there are none)."""
    rows = defaultdict(list)
    for path in files:
        for row in read_columns(path, ["data_source", "acc", "num_calls"]).to_pylist():
            for family in (row["data_source"], "all"):
                rows[family].append((row["acc"], row["num_calls"]))
    told = {}
    for family, found in sorted(rows.items()):
        modes = {"code": [acc for acc, calls in found if calls], "text": [acc for acc, calls in found if not calls]}
        told[family] = {
            "n": len(found),
            "calls": round(statistics.mean(calls for _, calls in found), 3),
            "code_share": round(len(modes["code"]) / len(found), 3),
        } | {mode: round(statistics.mean(accs), 3) if accs else None for mode, accs in modes.items()}
    return told


def _of_a_family(key: str) -> bool:
    return key.startswith("val/") and key.endswith("/accuracy") and key.count("/") == 2


def judge(runs: dict[str, dict]) -> list[dict]:
    """One row a claim: the differences in points of its pairs, their mean with a 95 % t-interval, and the verdict."""
    starts, value = {}, {}
    for name, run in runs.items():
        base, arm, _ = name.split("-")
        if run["start"]:
            starts[base, arm] = run["start"]["all"]
    for name, run in runs.items():
        base, arm, seed = name.split("-")
        value[base, arm, seed] = run["end"]["all"] if run["end"] else starts[base, arm]

    def accuracy(base: str, arm: str, seed: str) -> float:
        return starts[base, PLAN.before[arm]] if arm in PLAN.before else value[base, arm, seed]

    def cut(base: str, seed: str, claim, family: str) -> float:
        calls = [runs[f"{base}-{arm}-{seed}"]["late"][family]["calls"] for arm in (claim.worse[0], claim.better)]
        return 1 - calls[1] / calls[0]

    found, arms = [], {arm: sum(a == arm for _, a, _ in value) for arm in PLAN.arms}
    for name, claim in PLAN.claims.items():
        needed = {PLAN.before.get(arm, arm) for arm in (claim.better, *claim.worse)}
        if any(arms[arm] < len(PLAN.bases) * len(PLAN.seeds) for arm in needed):
            print(f"{name}: not judged, since of {', '.join(sorted(needed))} not every run was begun")
            continue
        pairs = []
        for base, arm, seed in value:
            if arm != claim.better:
                continue
            if claim.of == "accuracy":
                pairs.append(value[base, arm, seed] - max(accuracy(base, other, seed) for other in claim.worse))
            else:
                families = claim.get("more_on", ["all"])
                cuts = [cut(base, seed, claim, family) for family in families]
                pairs.append(cuts[0] - (cuts[1] if len(cuts) > 1 else 0))
        pairs = [round(100 * pair, 2) for pair in pairs]
        mean = statistics.mean(pairs)
        half = stats.t.ppf(0.975, len(pairs) - 1) * statistics.stdev(pairs) / len(pairs) ** 0.5
        met = {
            "all": mean >= claim.points and all(pair > 0 for pair in pairs),
            "above": mean - half > claim.points,
            "within": abs(mean) + half < claim.points,
        }[claim.rule]
        found.append(
            {"claim": name, "paper": claim.paper, "criterion": criterion(claim), "pairs": pairs}
            | {"mean": round(mean, 2), "interval": [round(mean - half, 2), round(mean + half, 2)], "met": bool(met)}
        )
    return found


def criterion(claim) -> str:
    """As the table says it."""
    worse = claim.worse[0] if len(claim.worse) == 1 else f"max({', '.join(claim.worse)})"
    what = f"{claim.better} - {worse}" if claim.of == "accuracy" else f"calls cut, {claim.better} against {worse}"
    if "more_on" in claim:
        what += f", {claim.more_on[0]} less {claim.more_on[1]}"
    return f"{what} {dict(all='>=', above='interval above', within='interval within +-')[claim.rule]} {claim.points}"


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


def behaviours(runs: dict[str, dict]) -> str:
    """What the policies do, early and late: whether RL moved the share of programs, or the accuracy of either mode."""
    lines = [
        "| run, steps | accuracy | share with code | with code right | in text right | calls |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        pair = [run["early"]["all"], run["late"]["all"]]
        accuracy = [p["code_share"] * (p["code"] or 0) + (1 - p["code_share"]) * (p["text"] or 0) for p in pair]
        told = [accuracy, *([p[key] for p in pair] for key in ("code_share", "code", "text", "calls"))]
        cells = [" to ".join("-" if v is None else f"{v:.2f}" for v in values) for values in told]
        lines.append(f"| {name}, {run['steps']} | {' | '.join(cells)} |")
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
    told = json.loads(arguments.out.read_text())
    print(table(told["claims"]))
    if any("early" in run for run in told["runs"].values()):
        print("\n" + behaviours(told["runs"]))


if __name__ == "__main__":
    main()
