"""Looks for an input that makes the grader raise, accept nonsense, or take long: as long as it is given.

    nice -n 15 python -m benchmarks.rewards.fuzz --minutes 60 --seed 1

Answers and truths are made of the pieces that answers are made of, repeated and nested, and of any characters. Prints
inputs tried, the slowest processor time, and every find with its seed; exit code 1 when there is one.
"""

import argparse
import random
import sys
import time

from retool_mcore.rewards.grader.structure import decide

PIECES = [
    *"0123456789xyabijenf+-*/^_=<>(){}[]|!,;:.%$&~?'\"#@ \\\n",
    *"é½²√π∞±≤∪∅≡°\u200b\ud800\x00",
    *[r"\frac{1}{", r"\sqrt", r"\text{", r"\pm", r"\cup", r"\left(", r"\right)", r"\{", r"\}", r"\boxed{", r"\mathbf{"],
    *[
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\\",
        r"\pmod",
        r"\equiv",
        r"\overline{",
        r"\dot",
        r"\sin",
        r"\log_",
        "^{",
    ],
    *[
        r"\binom{5}{",
        r"\in",
        r"\approx",
        r"\sum_{k=1}^",
        r"\lfloor",
        " or ",
        " and ",
        "not ",
        "one ",
        "hundred ",
        "0.(",
    ],
    *[
        "(1,2),",
        "x=",
        "[1,2]",
        "5!",
        "cm ",
        "10^",
        "(x+1)",
        "e^{",
        "f(",
        r"\exp(",
        "1e9",
        "(A) ",
        "3:",
        "mod 7 ",
        r"\infty",
    ],
]
SLOW_S = 0.1


def text(r: random.Random) -> str:
    pieces = [r.choice(PIECES) * r.choice([1, 1, 1, 1, 2, 30, 10_000]) for _ in range(r.randint(1, 14))]
    if r.random() < 0.1:
        pieces.append("".join(chr(r.randrange(0x3000)) for _ in range(r.randint(1, 60))))
    return "".join(pieces)[: r.choice([30, 200, 1000, 1024, 1_000_000])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first input; each one has the next")
    args = parser.parse_args()
    end, seed, finds, slowest = time.monotonic() + 60 * args.minutes, args.seed, 0, 0.0
    while time.monotonic() < end:
        r = random.Random(seed)
        answer, truth = text(r), r.choice(["8642097531", r"\frac{83}{499}", text(r)])
        start = time.process_time()
        try:
            problem = "accepted" if decide(answer, truth) and truth in ("8642097531", r"\frac{83}{499}") else ""
        except Exception as error:
            problem = repr(error)
        took = time.process_time() - start
        slowest = max(slowest, took)
        if problem or took > SLOW_S:
            finds += 1
            print(f"seed {seed}: {problem or f'{took:.2f} s'}: {answer[:120]!r} against {truth[:60]!r}", flush=True)
        seed += 1
    print(
        f"{seed - args.seed} inputs in {args.minutes:g} minutes, {finds} finds, "
        f"the slowest {slowest:.3f} s of processor time"
    )
    return int(finds > 0)


if __name__ == "__main__":
    sys.exit(main())
