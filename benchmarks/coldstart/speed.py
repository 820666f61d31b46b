"""Rows a second of the cold-start pipeline's stages that ask no model, and how much faster they are than the plain way.

    python -m benchmarks.coldstart.speed              # 4,000 generated rows, as many processes as there are cores
    python -m benchmarks.coldstart.speed --rows 1000 --processes 4

In the same run: each stage one row at a time, in this process, and as the pipeline runs it (processes are started for
work that takes longer than their start; tasks wait for the sandbox and the grader); near duplicates also by a
loop over all pairs, and execution also with a new interpreter for each program. One row in 20 is a near duplicate of an
earlier one, one in 50 shares a sentence with an evaluation file.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES
from retool_mcore.coldstart import dedup
from retool_mcore.coldstart.config import Columns, EvaluationFile, Execution, Select, Source
from retool_mcore.coldstart.dedup import Decontaminate, jaccard, numbers, shingles
from retool_mcore.coldstart.execution import Executor
from retool_mcore.coldstart.normalise import check_form, normalise
from retool_mcore.coldstart.pipeline import map_rows, outcomes, outcomes_async
from retool_mcore.coldstart.rows import Row
from retool_mcore.coldstart.select import Selector
from retool_mcore.coldstart.source import read
from retool_mcore.coldstart.verify import check_answer, check_rule
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.sandbox.create import create_sandbox
from tests.support.coldstart.recorded_rewrites import recorded

JACCARD, WORDS, NGRAM = 0.8, 3, 10
_PAIRED_ROWS, _RUN_ROWS, _FRESH_ROWS = 600, 200, 20
_VOCABULARY = [a + b for a in ("ba", "co", "di", "fu", "gra", "lo", "mi", "ne") for b in ("ran", "sel", "tin", "vor")]


def generated(count: int, evaluation: list[str]) -> list[Row]:
    """Rows with problems of 60 words and a good rewrite, 3,000 characters of reasoning each."""
    rng, rows = random.Random(0), []
    for number, made in enumerate(recorded(count, kinds=("good",))):
        told = rng.choices(_VOCABULARY, k=50)
        problem = f"{made.problem} {' '.join(told)}"
        if number % 20 == 19:
            words = rng.choice(rows).problem.split()
            words[-1] = "otherwise"
            problem = " ".join(words)
        elif number % 50 == 48:
            problem += f" {rng.choice(evaluation)}"
        reasoning = " ".join(rng.choices(_VOCABULARY, k=500)) + f"\n{made.reasoning}"
        rows.append(Row(f"k{number}", number, problem, reasoning, made.answer, rewrite=made.rewrite))
    return rows


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def all_pairs(rows: list[Row]) -> int:
    sets = [(shingles(row.problem, WORDS), numbers(row.problem)) for row in rows]
    return sum(a[1] == b[1] and jaccard(a[0], b[0]) >= JACCARD for i, a in enumerate(sets) for b in sets[:i])


def new_interpreters(rows: list[Row]) -> None:
    for row in rows:
        for segment in row.segments:
            if segment["kind"] == "code":
                subprocess.run([sys.executable, "-c", segment["text"]], capture_output=True, timeout=60)


async def waited(check, rows: list[Row], concurrency: int) -> float:
    start = time.perf_counter()
    await outcomes_async(check, iter(rows), concurrency, lambda outcome: None)
    return time.perf_counter() - start


def in_processes(rows: list[Row], processes: int, folder: Path) -> dict:
    """{stage: (rows, seconds one at a time, seconds as the pipeline runs it)} of what runs in processes."""
    evaluation = EvaluationFile(path=str(folder / "evaluation.jsonl"))
    checks = {
        "normalise": normalise,
        "decontaminate": Decontaminate([evaluation], NGRAM),
        "rule verification": check_rule,
        "format verification": check_form,
        "answer verification": check_answer,
        "selection": Selector(Select(min_programs=0), str(make_tiny_model(folder / "tiny", 0))),
    }
    source = Source(
        path=str(folder / "rows.jsonl"), columns=Columns(problem="problem", reasoning="reasoning", answer="answer")
    )
    once = {
        "read": lambda: list(read(source)),
        "exact duplicates": lambda: list(dedup.exact(lambda: rows, 1)),
    }
    times = {stage: (len(rows), took, took) for stage, work in once.items() for took in [seconds(work)]}

    def near(processes: int) -> Callable[[], list]:
        def parallel(function: Callable, items: Iterable):
            return map_rows(function, items, processes)

        return lambda: list(dedup.near(lambda: rows, JACCARD, WORDS, parallel))

    times["near duplicates"] = (len(rows), seconds(near(1)), seconds(near(processes)))
    for stage, check in checks.items():
        one, many = (seconds(lambda n=n, c=check: list(outcomes(c, rows, n))) for n in (1, processes))
        times[stage] = (len(rows), one, many)
    return times


async def in_tasks(rows: list[Row]) -> dict:
    """The same of what waits for the sandbox."""
    times = {}
    few, sandbox = rows[:_RUN_ROWS], create_sandbox({"kind": "local"})
    await sandbox.run("print(1)")
    executor = Executor(Execution(), sandbox)
    times["execution"] = (
        len(few),
        await waited(executor, few, 1),
        await waited(executor, few, Execution().concurrency),
    )
    await sandbox.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    rng = random.Random(1)
    evaluation = [" ".join(rng.choices(_VOCABULARY, k=30)) for _ in range(500)]
    rows = generated(arguments.rows, evaluation)
    head = provenance.made(PACKAGES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "evaluation.jsonl").write_text("".join(json.dumps({"problem": p}) + "\n" for p in evaluation))
        with (folder / "rows.jsonl").open("w") as file:
            for row in rows:
                file.write(
                    json.dumps({"problem": row.problem, "reasoning": row.reasoning, "answer": row.answer}) + "\n"
                )
        parsed = [outcome.row for outcome in outcomes(check_form, rows, 1)]
        times = in_processes(parsed, arguments.processes, folder) | asyncio.run(in_tasks(parsed))
    few = parsed[:_PAIRED_ROWS]
    # A row's share of the pairs grows with the rows.
    pairs = seconds(lambda: all_pairs(few)) / len(few) * len(rows) / len(few)
    fresh = seconds(lambda: new_interpreters(parsed[:_FRESH_ROWS])) / len(parsed[:_FRESH_ROWS])
    plain = {"near duplicates": pairs, "execution": fresh}
    table = {
        stage: {
            "rows": n,
            "rows_per_s": n / many,
            "one_at_a_time_rows_per_s": n / one,
            "ratio": one / many,
            "plain_rows_per_s": 1 / plain[stage] if stage in plain else None,
        }
        for stage, (n, one, many) in times.items()
    }
    print(
        "| stage | rows | rows/s | one at a time, rows/s | ratio | the plain way, rows/s |\n|---|---|---|---|---|---|"
    )
    for stage, f in table.items():
        figures = f"{f['rows_per_s']:.0f} | {f['one_at_a_time_rows_per_s']:.0f} | {f['ratio']:.2f}"
        print(f"| {stage} | {f['rows']} | {figures} | {f['plain_rows_per_s'] or 0:.1f} |".replace(" 0.0 |", " |"))
    provenance.write("coldstart_speed", head, {"processes": arguments.processes, "stages": table})


if __name__ == "__main__":
    main()
