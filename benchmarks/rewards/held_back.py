"""Judges the pairs that were held back (tests/support/grading/held_back.py): right, wrong, and how long.

    python -m benchmarks.rewards.held_back [--set held_back_forms] [--out grader_held_back_forms_again]

A set's first result is an estimate. Once the faults that it showed are mended, the set is a test.
"""

import argparse
import json
import statistics
import time
from collections import Counter

from benchmarks import provenance
from tests.support.grading.held_back import SETS, pairs


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
