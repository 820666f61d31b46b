r"""Print the table of a run of run.sh: accuracy by reasoning-gym's own scorer, use of the interpreter, minutes.

    python -m examples.smollm2.report RUN

Fails where SFT or RL did not raise the accuracy.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as parquet

from examples.smollm2.data import FAMILIES, right
from retool_mcore.errors import UserError
from retool_mcore.metrics.pass_k import pass_at_k
from retool_mcore.metrics.records import read_step

STAGES = {"init": "before SFT", "sft": "after SFT", "rl": "after RL"}


def scored(run: Path, stage: str) -> list[dict]:
    """Return the trajectories of an evaluation, with `family` and the scorer's verdict `official`."""
    (prepared,) = (run / "data" / "eval").glob("*/test.parquet")
    questions = [row["extra_info"]["question"] for row in parquet.read_table(prepared).to_pylist()]
    lines = (run / "problems" / "eval.jsonl").read_text(encoding="utf-8").splitlines()
    problems = {row["question"]: row for row in map(json.loads, lines)}
    records = []
    for record in read_step(run / "eval" / stage / "trajectories.jsonl"):
        problem = problems[questions[record["index"]]]
        verdict = right(problem["family"], record["pred"] or "", problem)
        records.append(record | {"family": problem["family"], "official": float(verdict)})
    return records


def mean(values: list[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def row(cells: list[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def table(run: Path) -> tuple[list[str], dict[str, float], int]:
    """Return the table's lines, the accuracy of each stage, and the trajectories on which the verdicts differ."""
    columns = ["", "accuracy", "best of k", "with code", "tokens", *FAMILIES]
    lines = [row(columns), row(["---"] * len(columns))]
    accuracy, different = {}, 0
    for stage, title in STAGES.items():
        records = scored(run, stage)
        by_family = defaultdict(list)
        for record in records:
            by_family[record["family"]].append(record["official"])
        different += sum(record["official"] != record["acc"] for record in records)
        accuracy[stage] = mean([record["official"] for record in records])
        samples = max(Counter(record["index"] for record in records).values())
        official = [{**record, "data_source": "all", "acc": record["official"]} for record in records]
        best = pass_at_k(official, samples)[f"all/best@{samples}"]
        code = mean([float(bool(record["calls"])) for record in records])
        tokens = mean([float(len(record["response_ids"])) for record in records])
        families = [f"{mean(by_family[family]):.0%}" for family in FAMILIES]
        lines.append(row([title, f"{accuracy[stage]:.1%}", f"{best:.1%}", f"{code:.0%}", f"{tokens:.0f}", *families]))
    return lines, accuracy, different


def minutes(run: Path) -> str:
    """Return the minutes of every part, of all starts of run.sh together."""
    parts: Counter = Counter()
    for line in (run / "seconds.txt").read_text().splitlines():
        name, seconds = line.rsplit(" ", 1)
        parts[name] += int(seconds)
    shares = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in parts.items())
    return f"minutes: {sum(parts.values()) / 60:.0f} ({shares})"


def main() -> int:
    """Print the table and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    run = parser.parse_args().run
    try:
        lines, accuracy, different = table(run)
    except (UserError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    verdicts = f"answers on which reasoning-gym's scorer and the run's grader differ: {different}"
    print(*lines, verdicts, minutes(run), sep="\n")
    if not accuracy["init"] < accuracy["sft"] < accuracy["rl"]:
        print("report: not every stage raised the accuracy.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
