"""Judges generated pairs of the kinds that real data showed to be misjudged, before and after, next to math-verify.

    python -m benchmarks.rewards.kinds  # this tree and math-verify
    python -m benchmarks.rewards.kinds --before de51f34 --others ""  # this tree and a commit's grader

The kinds come from school and competition problems, multiple choice and reasoning_gym; the pairs are made here, by
seed, with values of their own (tests/support/grading/kinds.py). A cell is "right answers refused, wrong answers
accepted".
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks import provenance
from tests.support.grading.kinds import KINDS, pairs

_JUDGE = """
import json, sys
from retool_mcore.rewards.grader.structure import decide
def safe(pair):
    try:
        return bool(decide(*pair))
    except Exception:
        return False
print(json.dumps([safe(pair) for pair in json.load(sys.stdin)]))
"""


def judged_at(commit: str, asked: list[tuple[str, str]]) -> list[bool]:
    """The verdicts of the grader as it is at `commit`."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(provenance.ROOT), "archive", commit, "retool_mcore"]
        tree = subprocess.run(git, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=tree, check=True)
        done = subprocess.run(
            [sys.executable, "-c", _JUDGE], input=json.dumps(asked), cwd=folder, env={"PYTHONPATH": folder},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    return json.loads(done.stdout)


def judged_by(name: str, asked: list[tuple[str, str]], limit_s: float) -> list[bool]:
    from benchmarks.rewards.grader import Remote

    remote = Remote(name, limit_s)
    verdicts = [remote.compare(answer, truth)[0] for answer, truth in asked]
    remote.close()
    return verdicts


def main() -> None:
    from retool_mcore.rewards.equivalence import decide_once

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="of each kind, at least")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--before", help="a commit whose grader judges the pairs too")
    parser.add_argument("--others", default="math-verify", help="graders of benchmarks.rewards.grader, comma-separated")
    parser.add_argument("--limit", type=float, default=5.0, help="seconds after which a comparison counts as hung")
    parser.add_argument("--out", type=Path, default=provenance.RESULTS / "grader_kinds.json")
    args = parser.parse_args()
    head = provenance.made(("math-verify", "sympy"))
    cases = [(*pair, kind) for kind in KINDS for pair in pairs(kind, args.seed, args.pairs)]
    asked = [(answer, truth) for answer, truth, _, _ in cases]
    decide_once("|x|", "x")  # loads what is loaded late
    times, columns = [], {"after": []}
    for answer, truth in asked:
        start = time.process_time()
        columns["after"].append(decide_once(answer, truth)[0])
        times.append(1e3 * (time.process_time() - start))
    if args.before:
        columns = {f"before ({args.before})": judged_at(args.before, asked)} | columns
    for name in filter(None, args.others.split(",")):
        columns[name] = judged_by(name, asked, args.limit)
    failed = {
        name: Counter((kind, same) for (_, _, same, kind), v in zip(cases, verdicts, strict=True) if v is not same)
        for name, verdicts in columns.items()
    }
    sizes = Counter((kind, same) for _, _, same, kind in cases)
    rows = [
        [kind, sizes[kind, True], sizes[kind, False], *([f[kind, True], f[kind, False]] for f in failed.values())]
        for kind in KINDS
    ]
    print(f"| kind | right | wrong | {' | '.join(failed)} |\n|---|---|---|{'---|' * len(failed)}")
    for kind, right, wrong, *cells in rows:
        print(f"| {kind} | {right} | {wrong} | {' | '.join(f'{a}, {b}' for a, b in cells)} |")
    for (answer, truth, same, kind), verdict in zip(cases, columns["after"], strict=True):
        if verdict is not same:
            print(json.dumps({"kind": kind, "truth": truth, "answer": answer, "same": same}))
    times.sort()
    middle, high = (times[int(len(times) * share)] for share in (0.5, 0.99))
    figures = {"p50_ms": round(middle, 3), "p99_ms": round(high, 2), "max_ms": round(times[-1], 1)}
    print(json.dumps(figures))
    if str(args.out) != "-":
        print(provenance.write(args.out, head, {"columns": list(failed), "rows": rows} | figures))


if __name__ == "__main__":
    main()
