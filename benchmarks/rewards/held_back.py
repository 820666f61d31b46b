"""Judges the pairs that were written before the grader saw one of them (SETS): right, wrong, how long.

python -m benchmarks.rewards.held_back [--set held_back_forms] [--out grader_held_back_forms_again]

The pairs, {family: [[answer, truth, same], ...]}, are made apart from the generators that the grader was developed on
(metamorphic.py, statements.py). `held_back` comes from the look of the answers of college_math, CARP and Minerva:
slashes with spaces, `+C`, solved systems, families over the integers, implicit equations. `held_back_forms` comes from
the forms in the issues and suites of published graders (Math-Verify, NeMo-Skills, STACK) and in GSM8K, AIME and
UGMathBench: sympy's texts and LaTeX, chains of equations, planes, choices, quantities, and attempts to cheat of other
templates. `held_back_blind` is hand-made: truths of Omni-MATH and of the kinds that GSM8K-like sets have (units, money,
times, words), each with answers that a reader takes for the same and for another, and cheats in words of their own; its
author had read docs/grader.md and the templates of statements.py, and no rule. Elsewhere each value is known by
construction. A first result is an estimate; after the faults that it showed are
mended, the set is a test and no estimate any more.
"""

import argparse
import json
import statistics
import time
from collections import Counter
from pathlib import Path

from benchmarks import provenance

SETS = ("held_back", "held_back_forms", "held_back_blind")


def pairs(name: str = "held_back") -> list[tuple[str, str, bool, str]]:
    """(answer, truth, whether they are the same, family) of one of SETS."""
    families = json.loads(Path(__file__).with_name(f"{name}.json").read_text())
    return [(answer, truth, same, name) for name, found in families.items() for answer, truth, same in found]


def main() -> None:
    from retool_mcore.rewards.equivalence import equivalent

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="grader_held_back_again")
    parser.add_argument("--set", default="held_back", choices=SETS, dest="name")
    args = parser.parse_args()
    head, cases, times, wrong, crashes = provenance.made(("math-verify", "sympy")), pairs(args.name), [], [], []
    equivalent("|x|", "x")  # loads what is loaded late
    for answer, truth, same, family in cases:
        start = time.perf_counter()
        try:
            verdict = equivalent(answer, truth)
        except Exception as error:
            crashes.append([answer, truth, repr(error)])
            verdict = False
        times.append(time.perf_counter() - start)
        if verdict is not same:
            wrong.append({"answer": answer, "truth": truth, "same": same, "family": family})
    count = Counter(same for _, _, same, _ in cases)
    missed = Counter(item["same"] for item in wrong)
    result = {
        "pairs": len(cases),
        "true": count[True],
        "other": count[False],
        "right_percent": round(100 - 100 * len(wrong) / len(cases), 2),
        "recall_percent": round(100 - 100 * missed[True] / count[True], 2),
        "false_accepts": missed[False],
        "crashes": crashes,
        "p50_ms": round(1e3 * statistics.median(times), 3),
        "p99_ms": round(1e3 * statistics.quantiles(times, n=100)[98], 2),
        "wrong_by_family": dict(Counter(item["family"] for item in wrong)),
        "wrong": wrong,
    }
    for item in wrong:
        print(json.dumps(item))
    print(json.dumps({key: value for key, value in result.items() if key != "wrong"}, indent=1))
    print(provenance.write(args.out, head, result))


if __name__ == "__main__":
    main()
