"""Grades pairs with this project's grader and with four published ones, side by side: right, wrong, and how long.

    python -m benchmarks.rewards.grader  # the suite, 2,000 rewritten pairs, 1,000 hostile inputs
    python -m benchmarks.rewards.grader --pairs 500 --hostile 100 --others math_dapo,prime_math
    python -m benchmarks.rewards.grader --pairs 100000 --hostile 0 --others ""  # this grader alone, by kind

The pairs (tests/support/grading): Math-Verify's own suite without its rounded decimals, which are a setting, the
attempts to cheat, and the metamorphic generator with a seed of its own. Each grader runs in a process of its own, which
is killed, and counted as hung, when one comparison takes longer than --limit. Times are of single calls, in that
process.
"""

import argparse
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks import provenance
from benchmarks.tables import markdown

OURS = "retool_mcore"
OTHERS = ("math_dapo", "prime_math", "verl math_verify", "math-verify")
PACKAGES = ("math-verify", "latex2sympy2_extended", "sympy", "verl")
START_LIMIT_S = 300.0
GOALS = "recall >= 99.5 %, no false accept, p50 <= 0.3 ms, p99 <= 20 ms, kill <= 1 s, none hung"
_ROUNDED = re.compile(r"\.[0-9]{6}")


def grader(name: str) -> Callable[[str, str], bool]:
    """(answer, truth) -> accepted, for one of the graders; what it needs is imported here."""
    if name == OURS:
        from retool_mcore.rewards.equivalence import equivalent

        return equivalent
    if name == "math_dapo":
        from verl.utils.reward_score import math_dapo

        return lambda answer, truth: bool(math_dapo.compute_score(f"Answer: {answer}", truth)["acc"])
    if name == "prime_math":
        from verl.utils.reward_score import prime_math

        return lambda answer, truth: bool(prime_math.compute_score(f"\\boxed{{{answer}}}", truth)[0])
    if name == "verl math_verify":
        from verl.utils.reward_score import math_verify

        return lambda answer, truth: math_verify.compute_score(f"\\boxed{{{answer}}}", truth) > 0.5
    from math_verify import parse, verify

    return lambda answer, truth: bool(verify(parse(f"\\boxed{{{truth}}}"), parse(f"\\boxed{{{answer}}}")))


def child(name: str) -> None:
    """Answers each `[answer, truth]` on stdin with `[accepted, seconds]`, in a process that is replaced when killed.

    The replacement is forked, since loading a grader takes up to a minute. Its process id comes before its answers.
    """
    replies = os.dup(1)
    os.dup2(2, 1)
    compare = grader(name)
    while True:
        pid = os.fork()
        if pid == 0:
            serve(name, compare, replies)
            os._exit(0)
        if os.waitpid(pid, 0)[1] == 0:
            return


def serve(name: str, compare: Callable[[str, str], bool], replies: int) -> None:
    # Building grammars is not a comparison.
    compare(r"\frac{1}{2}", "1/2")
    os.write(replies, json.dumps(os.getpid()).encode() + b"\n")
    for line in sys.stdin:
        answer, truth = json.loads(line)
        start = time.perf_counter()
        try:
            accepted = bool(compare(answer, truth))
        except Exception:  # a grader that raises gives no reward
            accepted = False
        os.write(replies, json.dumps([accepted, time.perf_counter() - start]).encode() + b"\n")


class Remote:
    """A grader in a process of its own, started anew after it hung."""

    def __init__(self, name: str, limit_s: float):
        self.name, self.limit_s = name, limit_s
        self.process: subprocess.Popen | None = None

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rewards.grader", "--child", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd=provenance.ROOT,
        )
        self._unread = b""
        self._await_start()

    def _await_start(self) -> None:
        line = self._read_line(START_LIMIT_S)
        if line is None:
            raise SystemExit(f"{self.name} did not start within {START_LIMIT_S:.0f} s")
        self.pid = json.loads(line)

    def _read_line(self, timeout_s: float) -> bytes | None:
        """The child's next line; None after the time, or when the child has ended."""
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(deadline - time.monotonic(), 0)
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return None
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def compare(self, answer: str, truth: str) -> tuple[bool, float]:
        """(accepted, seconds); (False, inf) when it hung or crashed."""
        if self.process is None:
            self._start()
        self.process.stdin.write(json.dumps([answer, truth]).encode() + b"\n")
        line = self._read_line(self.limit_s)
        reply = None if line is None else json.loads(line)
        if reply is None:
            os.kill(self.pid, signal.SIGKILL)
            self._await_start()
        elif isinstance(reply, int):  # it crashed, and this is its replacement
            self.pid, reply = reply, None
        return (False, float("inf")) if reply is None else (reply[0], reply[1])

    def close(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None


def measure(name: str, cases: list, inputs: list[str], limit_s: float) -> dict:
    """One grader's row: rates in percent, times in milliseconds, and the pairs it got wrong."""
    remote = Remote(name, limit_s)
    wrong, times, accepted = [], [], {True: [], False: []}
    for answer, truth, same, rule in cases:
        verdict, seconds = remote.compare(answer, truth)
        times.append(min(seconds, limit_s))
        accepted[same].append(verdict)
        if verdict is not same:
            wrong.append({"answer": answer, "truth": truth, "same": same, "rule": rule})
    worst, hung, fooled = 0.0, 0, 0
    for text in inputs:
        verdict, seconds = remote.compare(text, "5")
        hung += seconds == float("inf")
        fooled += verdict
        worst = max(worst, min(seconds, limit_s))
    alive = remote.compare("2/4", "0.5")[0]
    remote.close()
    return {
        "grader": name,
        "recall_percent": round(100 * statistics.mean(accepted[True]), 2),
        "false_accepts_percent": round(100 * statistics.mean(accepted[False]), 2),
        "p50_ms": round(1e3 * statistics.median(times), 3),
        "p99_ms": round(1e3 * statistics.quantiles(times, n=100)[98], 1),
        "max_ms": round(1e3 * max(times), 1),
        "hostile": len(inputs),
        "hostile_hung": hung,
        "hostile_accepted": fooled,
        "hostile_max_s": round(worst, 2),
        "alive_after": alive,
        "wrong": wrong,
        "by_kind": by_kind(cases, wrong),
    }


def by_kind(cases: list, wrong: list[dict]) -> dict[str, list[int]]:
    """{rule: [pairs, of which wrong]}."""
    pairs, failed = Counter(case[3] for case in cases), Counter(item["rule"] for item in wrong)
    return {rule: [count, failed[rule]] for rule, count in sorted(pairs.items())}


def table(rows: list[dict]) -> str:
    """The rows as a Markdown table."""
    cells = ("grader", "recall_percent", "false_accepts_percent", "p50_ms", "p99_ms", "max_ms")
    head = ("grader", "recall %", "false accepts %", "p50 ms", "p99 ms", "max ms")
    head += ("hostile: hung", "accepted", "slowest s")
    tail = (
        (f"{row['hostile_hung']} of {row['hostile']}", row["hostile_accepted"], row["hostile_max_s"]) for row in rows
    )
    return markdown(head, [[*(row[cell] for cell in cells), *end] for row, end in zip(rows, tail, strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="pairs of the metamorphic generator")
    parser.add_argument("--seed", type=int, default=20260, help="of the generator and the hostile inputs")
    parser.add_argument("--hostile", type=int, default=1000, help="hostile inputs for this project's grader")
    parser.add_argument("--hostile-others", type=int, default=60, help="hostile inputs for the others, which may hang")
    parser.add_argument("--limit", type=float, default=10.0, help="seconds after which a comparison counts as hung")
    parser.add_argument("--others", default=",".join(OTHERS), help="the graders to compare with")
    parser.add_argument("--out", type=Path, default=provenance.RESULTS / "grader.json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return

    from tests.support.grading import metamorphic, statements
    from tests.support.grading.hostile_inputs import hostile
    from tests.support.grading.math_verify_pairs import DISPUTED, PAIRS

    head = provenance.made(PACKAGES)
    cases = [
        (answer, truth, same, "Math-Verify's suite")
        for truth, answer, same in [*PAIRS, *DISPUTED]
        if bool(_ROUNDED.search(answer)) is bool(_ROUNDED.search(truth))
    ]
    cases += [(answer, truth, False, "cheat") for answer, truth in statements.cheats()]
    cases += [(p.answer, p.truth, p.same, p.rule) for p in metamorphic.pairs(args.seed, args.pairs)]
    inputs = hostile(args.seed, max(args.hostile, args.hostile_others))
    rows = [measure(OURS, cases, inputs[: args.hostile], args.limit)]
    print(table(rows), flush=True)
    for name in filter(None, args.others.split(",")):
        rows.append(measure(name, cases, inputs[: args.hostile_others], args.limit))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    print(f"\n{len(cases)} pairs; goals: {GOALS}\n\n{table(rows)}\n")
    for row in rows[1:]:
        print(
            f"{row['grader']}: {row['p50_ms'] / rows[0]['p50_ms']:.1f} times the median and "
            f"{row['p99_ms'] / rows[0]['p99_ms']:.1f} times the p99 of {OURS}; recall "
            f"{row['recall_percent'] - rows[0]['recall_percent']:+.2f}, false accepts "
            f"{row['false_accepts_percent'] - rows[0]['false_accepts_percent']:+.2f} points"
        )
    for rule, (count, failed) in rows[0]["by_kind"].items():
        print(f"{rule}: {count} pairs, {failed} wrong")
    for item in rows[0]["wrong"]:
        print("wrong here:", json.dumps(item))
    for row in rows:
        row["wrong_count"], row["wrong"] = len(row["wrong"]), row["wrong"][:20]
    provenance.write(args.out, head, {"pairs": len(cases), "rows": rows})


if __name__ == "__main__":
    main()
