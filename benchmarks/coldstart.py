"""The cold-start pipeline's stages that ask no model: rows a second, and how well each verification stage judges.

    python benchmarks/coldstart.py                    # 3,000 rows for the speed, 300 recorded rewrites for the table
    python benchmarks/coldstart.py --rows 500

Speed is compared, in the same run, with the plain way: near duplicates with a loop over all pairs, execution with one
program at a time in a new interpreter, the other stages in one process. The rewrites are recorded (tests/coldstart),
their quality is known; a stage's positives are the rows that it drops, among those that reach it.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "coldstart"))

from recorded_rewrites import KINDS, recorded  # noqa: E402

from retool_mcore.coldstart import dedup  # noqa: E402
from retool_mcore.coldstart.config import Execution  # noqa: E402
from retool_mcore.coldstart.execution import Executor  # noqa: E402
from retool_mcore.coldstart.form import check_form  # noqa: E402
from retool_mcore.coldstart.minhash import jaccard, numbers, shingles  # noqa: E402
from retool_mcore.coldstart.normalise import normalise  # noqa: E402
from retool_mcore.coldstart.parallel import map_rows, outcomes, outcomes_async  # noqa: E402
from retool_mcore.coldstart.rows import Row  # noqa: E402
from retool_mcore.coldstart.verify import AnswerCheck  # noqa: E402
from retool_mcore.reward.equivalence import Grader  # noqa: E402
from retool_mcore.sandbox.create import create_sandbox  # noqa: E402

RESULT = Path(__file__).parent / "results" / "coldstart.json"
VERIFICATION = ("format verification", "execution", "answer verification")


def rows_of(count: int) -> list[Row]:
    made = recorded(count)
    return [Row(f"k{i}", i, r.problem, r.reasoning, r.answer, rewrite=r.rewrite) for i, r in enumerate(made)]


async def through(function, rows: list[Row], concurrency: int) -> list:
    found = []
    await outcomes_async(function, iter(rows), concurrency, found.append)
    return found


def judged(count: int, on_mismatch: str) -> dict:
    """{stage: {dropped, wanted, precision, recall}} over `count` recorded rewrites, each stage on what reaches it."""
    kinds = [row.kind for row in recorded(count)]
    rows, table = rows_of(count), {}
    grader, sandbox = Grader(), create_sandbox({"kind": "local"})

    async def run() -> None:
        left = rows
        for stage in VERIFICATION:
            if stage == "format verification":
                found = list(outcomes(check_form, left, 1))
            elif stage == "execution":
                found = await through(Executor(Execution(on_mismatch=on_mismatch), sandbox), left, 8)
            else:
                found = await through(AnswerCheck(grader), left, 4)
            dropped = {outcome.index for outcome in found if outcome.row is None}
            wanted = {outcome.index for outcome in found if KINDS[kinds[outcome.index]] == stage}
            right = len(dropped & wanted)
            table[stage] = {
                "rows": len(found),
                "dropped": len(dropped),
                "should_be_dropped": len(wanted),
                "precision": right / max(1, len(dropped)),
                "recall": right / max(1, len(wanted)),
            }
            left = sorted((outcome.row for outcome in found if outcome.row), key=lambda row: row.index)
        await sandbox.close()

    asyncio.run(run())
    grader.close()
    return table


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def pairs(rows: list[Row]) -> int:
    sets = [(shingles(row.problem, 3), numbers(row.problem)) for row in rows]
    return sum(a[1] == b[1] and jaccard(a[0], b[0]) >= 0.8 for i, a in enumerate(sets) for b in sets[:i])


def one_by_one(rows: list[Row]) -> None:
    for row in rows:
        for segment in row.segments:
            if segment["kind"] == "code":
                subprocess.run([sys.executable, "-c", segment["text"]], capture_output=True, timeout=60)


def speeds(count: int, processes: int) -> dict:
    """{stage: {rows_per_s, plain_rows_per_s, ratio}}; the plain way is timed on fewer rows where it is slow."""
    rows = rows_of(count)
    parsed = [outcome.row for outcome in outcomes(check_form, rows, 1) if outcome.row]
    programs, few = parsed[: min(len(parsed), 200)], parsed[:10]
    compared = rows[: min(count, 600)]
    sandbox, grader = create_sandbox({"kind": "local"}), Grader()

    async def execute() -> float:
        executor = Executor(Execution(on_error="keep"), sandbox)
        await sandbox.run("print(1)")
        start = time.perf_counter()
        await through(executor, programs, 8)
        took = time.perf_counter() - start
        await sandbox.close()
        return took

    def parallel(function, items):
        return map_rows(function, items, processes)

    found = {
        "normalise": (count, seconds(lambda: list(outcomes(normalise, rows, processes))))
        + (count, seconds(lambda: list(outcomes(normalise, rows, 1)))),
        "near duplicates": (count, seconds(lambda: list(dedup.near(rows, 0.8, 3, parallel))))
        # Quadratic: on `count` rows the pairs would cost as much more a row as there are more rows.
        + (len(compared) * len(compared) / count, seconds(lambda: pairs(compared))),
        "format verification": (count, seconds(lambda: list(outcomes(check_form, rows, processes))))
        + (count, seconds(lambda: list(outcomes(check_form, rows, 1)))),
        "execution": (len(programs), asyncio.run(execute())) + (len(few), seconds(lambda: one_by_one(few))),
        "answer verification": (len(parsed), seconds(lambda: asyncio.run(through(AnswerCheck(grader), parsed, 4))))
        + (len(parsed), seconds(lambda: asyncio.run(through(AnswerCheck(grader), parsed, 1)))),
    }
    grader.close()
    return {
        stage: {"rows_per_s": n / s, "plain_rows_per_s": m / t, "ratio": (n / s) / (m / t)}
        for stage, (n, s, m, t) in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3000, help="rows for the speed")
    parser.add_argument("--recorded", type=int, default=300, help="recorded rewrites for precision and recall")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    tables = {mode: judged(arguments.recorded, mode) for mode in ("repair", "drop")}
    for mode, table in tables.items():
        print(f"on_mismatch: {mode}\n  {'stage':22} {'rows':>5} {'dropped':>8} {'precision':>10} {'recall':>7}")
        for stage, found in table.items():
            figures = f"{found['dropped']:8d} {found['precision']:10.3f} {found['recall']:7.3f}"
            print(f"  {stage:22} {found['rows']:5d} {figures}")
    speed = speeds(arguments.rows, arguments.processes)
    for stage, found in speed.items():
        print(f"  {stage:22} {found['rows_per_s']:9.0f} rows/s, {found['ratio']:7.1f} x the plain way")
    machine = {"cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()}
    machine["load"] = round(os.getloadavg()[0], 1)
    versions = {name: metadata.version(name) for name in ("numpy", "pyarrow", "openai", "math-verify")}
    result = {"command": " ".join(["python", "benchmarks/coldstart.py", *sys.argv[1:]]), "machine": machine}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result | {"versions": versions, "judged": tables, "speed": speed}, indent=2) + "\n")


if __name__ == "__main__":
    main()
