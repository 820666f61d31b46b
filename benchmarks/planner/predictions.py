"""The planner's predictions beside measured steps: peak memory and seconds, the error of each.

    python -m benchmarks.planner.predictions
    python -m benchmarks.planner.predictions --rows benchmarks/results/train_gpu.json --fit tp2/0 tp2/1 dp2/2

Rows are those of benchmarks/results/plan_baseline.json (stock verl) and of train_gpu.json, when there. Memory has no
fitted constant. Of the time, three constants are fitted (the shares of the GPU's peak that products and attention
reach, and the host's seconds a step) to the three rows that the table marks; all others are predictions. The
alternative in the same run is the sum that is done by hand: weights, gradients and optimizer alone for memory, and 6
FLOPs a parameter and token at 40 % of the peak for time.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import provenance
from retool_mcore.planner.machine import Constants
from retool_mcore.planner.memory import GIB
from retool_mcore.planner.rollout import Rollout, generation_seconds
from retool_mcore.planner.time import log_prob_seconds
from tests.support.calibration import FITTED, Case, calibrate, case, read

BASELINE, MEASURED, RESULT = (provenance.RESULTS / f"{name}.json" for name in ("plan_baseline", "train_gpu", "plan"))
MEMORY_GOAL, TIME_GOAL = 0.07, 0.15
HAND_MFU = 0.4
CACHE_TOKENS = 10**9  # stock verl's KV cache held all sequences of those steps
FIT_ON = ("smoke/3", "tp2/0", "tp2/1")  # a step of little work, and stock verl on short and on long sequences


def by_hand(case: Case) -> tuple[float, float]:
    """(bytes, seconds) by the rule of thumb."""
    parameters, ranks = case.shape.parameters, case.layout.tp * case.layout.pp
    state = (2 + 4 + 12 / (case.layout.dp * case.layout.cp)) * parameters / ranks
    tokens = sum(case.batch.lengths)
    return state, 6 * parameters * tokens / (case.machine.bf16 * HAND_MFU * case.layout.world)


def compare(cases: list[Case], fit_on: list[Case], constants: Constants) -> list[dict]:
    rows = []
    for each in cases:
        found, hand = each.predict(constants), by_hand(each)
        row = {"name": each.name, "tokens": sum(each.batch.lengths), "longest": each.batch.longest}
        row |= {"micro_batch_tokens": each.layout.micro_batch_tokens, "fitted": each in fit_on}
        if each.memory:
            row |= {"memory_gib": each.memory / GIB, "predicted_memory_gib": found.memory_bytes / GIB}
            row |= {
                "memory_error": found.memory_bytes / each.memory - 1,
                "hand_memory_error": hand[0] / each.memory - 1,
            }
        if each.seconds:
            row |= {"step_s": each.seconds, "predicted_step_s": found.step_seconds}
            row |= {"step_error": found.step_seconds / each.seconds - 1, "hand_step_error": hand[1] / each.seconds - 1}
        rows.append(row)
    return rows


def phases(path: Path) -> list[dict]:
    """The other phases of a step of RL beside the rows that have them: generation and old log-probabilities."""
    found = []
    for row in json.loads(path.read_text())["rows"]:
        if "generation_s" not in row:
            continue
        known = case(row)
        engine = Rollout(row["rollout_tp"], 0.5, CACHE_TOKENS)
        arguments = (known.batch, known.machine)
        for name, predicted in (
            ("generation", generation_seconds(known.shape, engine, *arguments, world=known.layout.world)),
            ("log-probs", log_prob_seconds(known.shape, known.layout, *arguments)),
        ):
            measured = row[f"{name.replace('-', '_')}_s"]
            found.append({"name": known.name, "phase": name, "measured_s": measured, "predicted_s": predicted})
    return found


def table(rows: list[dict]) -> Table:
    result = Table(padding=(0, 0))
    for heading in (
        "row",
        "tokens",
        "longest",
        "micro-\nbatch",
        "GiB",
        "pre-\ndicted",
        "error\n%",
        "s",
        "pre-\ndicted",
        "error\n%",
    ):
        result.add_column(heading, justify="left" if heading == "row" else "right", no_wrap=True)
    result.add_column("time")

    def cells(row: dict, names: tuple[str, str, str]) -> list[str]:
        if names[0] not in row:
            return ["-", f"{row[names[1]]:.1f}" if names[1] in row else "-", "-"]
        return [f"{row[names[0]]:.2f}", f"{row[names[1]]:.2f}", f"{100 * row[names[2]]:+.1f}"]

    for row in rows:
        result.add_row(
            row["name"],
            f"{row['tokens']:,}",
            f"{row['longest']:,}",
            f"{row['micro_batch_tokens']:,}",
            *cells(row, ("memory_gib", "predicted_memory_gib", "memory_error")),
            *cells(row, ("step_s", "predicted_step_s", "step_error")),
            "fitted" if row["fitted"] else "predicted",
        )
    return result


def summary(rows: list[dict]) -> dict:
    """How many are within the goals, and the mean and largest errors; of the time, those that were not fitted."""

    def of(found: list[float], goal: float) -> dict:
        sizes = [abs(error) for error in found]
        if not sizes:
            return {"rows": 0}
        within = sum(size <= goal for size in sizes)
        return {"rows": len(sizes), "within": within, "mean": sum(sizes) / len(sizes), "largest": max(sizes)}

    memory = [row for row in rows if "memory_error" in row]
    free = [row for row in rows if "step_error" in row and not row["fitted"]]
    return {
        "memory": of([row["memory_error"] for row in memory], MEMORY_GOAL),
        "memory_by_hand": of([row["hand_memory_error"] for row in memory], MEMORY_GOAL),
        "step": of([row["step_error"] for row in free], TIME_GOAL),
        "step_by_hand": of([row["hand_step_error"] for row in free], TIME_GOAL),
    }


def sentence(name: str, goal: float, found: dict, hand: dict) -> str:
    if not found["rows"]:
        return f"{name}: no row that was not fitted."
    ours, by_hand = ([100 * of[part] for part in ("mean", "largest")] for of in (found, hand))
    return (
        f"{name}: {found['within']} of {found['rows']} within {100 * goal:.0f} %, mean error {ours[0]:.1f} %, largest "
        f"{ours[1]:.1f} %; by hand {by_hand[0]:.1f} % and {by_hand[1]:.1f} %, {by_hand[0] / ours[0]:.1f} times as much."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, nargs="*", help="files of rows; default: the two named above")
    parser.add_argument("--fit", nargs="*", default=FIT_ON, help="ids of the rows to fit on; none: nothing is fitted")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    files = arguments.rows or [path for path in (BASELINE, MEASURED) if path.exists()]
    cases = [each for path in files for each in read(path)]
    fit_on = [each for each in cases if each.seconds and each.id in arguments.fit]
    constants = calibrate(fit_on) if fit_on else Constants()
    rows = compare(cases, fit_on, constants)
    console = Console(width=150)
    console.print(table(rows))
    found = summary(rows)
    print(sentence("memory", MEMORY_GOAL, found["memory"], found["memory_by_hand"]))
    print(sentence("time", TIME_GOAL, found["step"], found["step_by_hand"]))
    others = phases(BASELINE)
    for row in others:
        error = 100 * (row["predicted_s"] / row["measured_s"] - 1)
        times = f"{row['measured_s']} s, predicted {row['predicted_s']:.1f} s ({error:+.0f} %)"
        print(f"{row['name']}: {row['phase']} {times}")
    default = Constants()
    fits = ", ".join(f"{name} {getattr(constants, name):.3f} (table: {getattr(default, name):.3f})" for name in FITTED)
    print(f"fitted: {fits}")
    result = {
        "constants": asdict(constants),
        "fitted": list(FITTED) if fit_on else [],
        "summary": found,
        "other_phases": others,
        "rows": rows,
    }
    provenance.write(arguments.out, provenance.made(("numpy", "scipy")), result)


if __name__ == "__main__":
    main()
