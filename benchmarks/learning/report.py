"""The claims of a plan, judged on what its runs left: every pair, the interval and the verdict.

    python -m benchmarks.learning.report runs/learning             reads the run folders, writes the results file
    python -m benchmarks.learning.report                           the table of the results file as it is
    python -m benchmarks.learning.report --plot docs/learning.png  and its curves
    python -m benchmarks.learning.report --plan plan_calls.yaml    each of them of another plan than plan.yaml
    python -m benchmarks.learning.report --plan plan_parts_again.yaml --beside plan_mask.yaml plan_two_cores.yaml \\
        --forest docs/learning_parts.png                           their claims in a row

A claim is judged on the last validation that all runs of its arms have reached, one of training on the last steps that
all have. A run without a validation counts with its start's accuracy. No seed is added. --hung names runs that hung and
were run again, once: the table tells both verdicts, with the second try and by the rule.
"""

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks import provenance
from benchmarks.learning.arms import read_plan
from retool_mcore.analysis.figure import bands, forest
from retool_mcore.analysis.statistics import interval, met, reached
from retool_mcore.metrics.records import read_columns, step_files

CURVES = ("reward/accuracy", "behaviour/code_ratio", "behaviour/calls", "behaviour/response_length", "mismatch/kl")
EARLY, LATE = 2, 8  # steps whose trajectories tell what the policy does at the start, and at the end
_STEP = ("timing_s/step", "timing_s/gen")


def read(run: Path) -> dict:
    """A run's steps, its accuracy by family before and after, what it did early and late, and its curves."""
    rows = [json.loads(line) for line in sorted(run.glob("rl/metrics/*.jsonl"))[-1].read_text().splitlines()]
    lines = [row["data"] for row in rows]
    told: dict = {"steps": sum("reward/accuracy" in line for line in lines), "start": None, "end": None}
    told["validations"] = {}  # by step, all but the start's
    for place, line in enumerate(lines):
        if "val/accuracy" in line:
            families = {key.split("/")[1]: round(v, 4) for key, v in line.items() if _of_a_family(key)}
            told["start" if place == 0 else "end"] = {"all": round(line["val/accuracy"], 4)} | families
            if place:
                told["validations"][str(rows[place]["step"])] = round(line["val/accuracy"], 4)
    files = list(step_files(run / "rl/trajectories").values())
    if len(files) == told["steps"]:  # all of them were kept
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


def judge(plan, runs: dict[str, dict], hung: Collection[str] = (), judged: bool = True) -> list[dict]:
    """One row a claim: the differences in points of its pairs, their mean with a 95 % t-interval, and the verdict.

    hung: runs that count as if they had not come to their end; no calls are cut in a pair of theirs. judged: False
    gives the pairs, without a verdict, of the claims for which not every run was begun.
    """
    starts = {}
    for name, run in runs.items():
        base, arm, _ = name.split("-")
        if run["start"]:
            starts[base, arm] = run["start"]["all"]

    def accuracy(base: str, arm: str, seed: str, step: int | None) -> float:
        if arm in plan.before:
            return starts[base, plan.before[arm]]
        name = f"{base}-{arm}-{seed}"
        if name in hung or not runs[name]["end"]:
            return starts[base, arm]
        return runs[name]["validations"][str(step)] if step else runs[name]["end"]["all"]

    def on_training(base: str, arm: str, seed: str, steps: int) -> float:
        name = f"{base}-{arm}-{seed}"
        curve = runs[name]["curves"]["reward/accuracy"]
        return statistics.mean(curve[:EARLY] if name in hung else curve[max(0, steps - plan.get("late", LATE)) : steps])

    def cut(base: str, seed: str, claim, family: str) -> float:
        names = [f"{base}-{arm}-{seed}" for arm in (claim.worse[0], claim.better)]
        if not set(names).isdisjoint(hung):
            return 0.0
        calls = [runs[name]["late"][family]["calls"] for name in names]
        return 1 - calls[1] / calls[0]

    found, of_arm = [], {arm: [name for name in runs if name.split("-")[1] == arm] for arm in plan.arms}
    for name, claim in plan.claims.items():
        needed = {plan.before.get(arm, arm) for arm in (claim.better, *claim.worse)}
        if judged == any(len(of_arm[arm]) < len(plan.bases) * len(plan.seeds) for arm in needed):
            continue
        others = [other for other in claim.worse if other not in plan.before]
        whole = [runs[run] for arm in (claim.better, *others) for run in of_arm[arm] if run not in hung]
        step, steps = reached(whole), min((run["steps"] for run in whole), default=0)
        pairs = []
        for run in of_arm[claim.better]:
            base, arm, seed = run.split("-")
            if any(f"{base}-{other}-{seed}" not in runs for other in others):
                continue
            if claim.of == "training":
                worse = max(on_training(base, other, seed, steps) for other in others)
                pairs.append(on_training(base, arm, seed, steps) - worse)
            elif claim.of == "accuracy":
                worse = max(accuracy(base, other, seed, step) for other in claim.worse)
                pairs.append(accuracy(base, arm, seed, step) - worse)
            else:
                families = claim.get("more_on", ["all"])
                cuts = [cut(base, seed, claim, family) for family in families]
                pairs.append(cuts[0] - (cuts[1] if len(cuts) > 1 else 0))
        pairs = [round(100 * pair, 2) for pair in pairs]
        last = steps if claim.of == "training" else step
        told = {"after_step": last} if last else {}
        if not judged:
            found.append({"claim": name, "criterion": criterion(claim), "pairs": pairs} | told)
            continue
        mean, half = interval(pairs)
        kept = met(claim.rule, claim.points, pairs, [(mean, half)])
        found.append(
            {"claim": name, "paper": claim.paper, "criterion": criterion(claim), "pairs": pairs}
            | {"mean": round(mean, 2), "interval": [round(mean - half, 2), round(mean + half, 2)], "met": bool(kept)}
            | told
        )
    return found


def criterion(claim) -> str:
    """As the table says it."""
    worse = claim.worse[0] if len(claim.worse) == 1 else f"max({', '.join(claim.worse)})"
    what = f"calls cut, {claim.better} against {worse}" if claim.of == "calls" else f"{claim.better} - {worse}"
    what += ", in training" * (claim.of == "training")
    if "more_on" in claim:
        what += f", {claim.more_on[0]} less {claim.more_on[1]}"
    return f"{what} {dict(all='>=', above='interval above', within='interval within +-')[claim.rule]} {claim.points}"


def table(rows: list[dict]) -> str:
    both = any("met_by_rule" in row for row in rows)
    lines = [
        f"| claim | criterion, points | pairs | mean [95 %] | met |{' by the rule |' * both}",
        f"|---|---|---|---|---|{'---|' * both}",
    ]
    for row in rows:
        pairs = ", ".join(f"{d:+.1f}" for d in row["pairs"])
        low, high = row["interval"]
        met = " | ".join("yes" if row[key] else "no" for key in ("met", "met_by_rule") if key in row)
        what = row["criterion"] + (f", after step {row['after_step']}" if "after_step" in row else "")
        lines.append(f"| {row['claim']} | {what} | {pairs} | {row['mean']:+.1f} [{low:+.1f}, {high:+.1f}] | {met} |")
    return "\n".join(lines)


def shown(plan, curves: Mapping[str, Mapping[str, float]], first: int = 3) -> str:
    """Of runs whose files were lost: the claims' pairs over the steps, from `first` on, that a console had shown of
    both runs. Told, and not judged."""
    lines = []
    for name, claim in plan.claims.items():
        pairs = []
        for run, curve in curves.items():
            base, arm, seed = run.split("-")
            other = curves.get(f"{base}-{claim.worse[0]}-{seed}", {})
            steps = [step for step in curve if step in other and int(step) >= first]
            if arm == claim.better and steps:
                pairs.append(100 * statistics.mean(curve[step] - other[step] for step in steps))
        if not pairs:
            continue
        told = f"{name}: {claim.better} - {claim.worse[0]} {', '.join(f'{pair:+.1f}' for pair in pairs)}"
        if len(pairs) > 1:
            mean, half = interval(pairs)
            told += f"; {mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
        lines.append(told)
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


def decomposition(runs: dict[str, dict]) -> str:
    """Where an arm's gain from early to late is: more answers with code, better ones with code, better ones in text.

    With s the share with code, c and t the accuracies: d(sc + (1-s)t) = ds (c-t) + s dc + (1-s) dt, at the means of
    early and late, which is exact. Averaged over the arm's runs.
    """
    arms = defaultdict(list)
    for name, run in runs.items():
        (s, c, t), (s2, c2, t2) = (
            [run[when]["all"][key] or 0.0 for key in ("code_share", "code", "text")] for when in ("early", "late")
        )
        middle, better, text = (s + s2) / 2, (c + c2) / 2, (t + t2) / 2
        arms[name.split("-")[1]].append(((s2 - s) * (better - text), middle * (c2 - c), (1 - middle) * (t2 - t)))
    lines = ["| arm | gain, points | calls more often | better with code | better in text |", "|---|---|---|---|---|"]
    for arm, parts in arms.items():
        means = [100 * statistics.mean(own) for own in zip(*parts, strict=True)]
        lines.append(f"| {arm} | {sum(means):+.1f} | {' | '.join(f'{own:+.1f}' for own in means)} |")
    return "\n".join(lines)


def plot(labels: Mapping[str, str], told: dict, path: Path) -> None:
    """Accuracy of the training steps: an arm's mean and the range of its runs; what the last policy has on held-back
    problems as a point with its 95 % interval."""
    arms = {}
    for arm, label in labels.items():
        own = [run for name, run in told["runs"].items() if name.split("-")[1] == arm]
        arms[label] = ([run["curves"]["reward/accuracy"] for run in own], [run["end"]["all"] for run in own])
    bands(arms, [path], lowest=20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, help="the results file; without it the plan's")
    parser.add_argument("--plan", default="plan.yaml")
    parser.add_argument("--hung", nargs="+", default=[], metavar="RUN")
    parser.add_argument("--plot", type=Path, metavar="PICTURE")
    parser.add_argument("--forest", type=Path, metavar="PICTURE")
    parser.add_argument("--beside", nargs="+", default=[], metavar="PLAN", help="whose claims the forest has too")
    arguments = parser.parse_args()
    plan = read_plan(arguments.plan)
    out = arguments.out or provenance.RESULTS / f"{plan.results}.json"
    if arguments.runs:
        packages = ("torch", "verl", "vllm", "ray", "megatron-core", "transformers")
        head = provenance.made(packages, device=provenance.gpus())
        runs = {run.name: read(run) for run in sorted(arguments.runs.glob("b*-?-s*"))}
        claims = judge(plan, runs)
        if arguments.hung:
            by_rule = judge(plan, runs, arguments.hung)
            claims = [row | {"met_by_rule": own["met"]} for row, own in zip(claims, by_rule, strict=True)]
        provenance.write(out, head, {"runs": runs, "hung": arguments.hung, "claims": claims})
    told = json.loads(out.read_text())
    print(table(told["claims"]))
    for row in judge(plan, told["runs"], judged=False):
        if row["claim"] in {own["claim"] for own in told["claims"]}:
            continue
        pairs, wanted = ", ".join(f"{d:+.1f}" for d in row["pairs"]), len(plan.bases) * len(plan.seeds)
        print(f"not judged: {row['claim']}, {row['criterion']}: {len(row['pairs'])} of {wanted} pairs {pairs}".rstrip())
    if "shown" in told:
        print("\nshown before the runs were lost:\n" + shown(plan, told["shown"]))
    if any("early" in run for run in told["runs"].values()):
        print("\n" + behaviours(told["runs"]) + "\n\n" + decomposition(told["runs"]))
    if arguments.plot:
        plot(plan.labels, told, arguments.plot)
    if arguments.forest:
        others = [provenance.RESULTS / f"{read_plan(name).results}.json" for name in arguments.beside]
        forest(
            told["claims"] + [row for path in others for row in json.loads(path.read_text())["claims"]],
            arguments.forest,
        )


if __name__ == "__main__":
    main()
