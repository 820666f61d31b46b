"""Looks with hypothesis for an input that makes the grader raise, take long, or judge wrongly: as long as it is given.

    nice -n 15 python -m tests.support.grading.fuzz --minutes 60 --database DIRECTORY

Four hunts take turns, each round with the next seed: `noise` (the pieces that answers are made of, in thousands, and
any characters, up to a megabyte), `same` (a text equals itself with blanks around it), `pairs` (the rules of
metamorphic.py) and `cheats` (a statement of statements.py about a value, trimmed or around a trimmed one). What is
found is shrunk by hypothesis and goes into fuzzed.json, to which tests/rewards/test_grader_fuzzed.py holds the grader;
DIRECTORY keeps hypothesis's own examples for the next run. Exit code 1 when something new was found.
"""

import argparse
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase

from retool_mcore.rewards.grader import canonical, nodes, text, values
from retool_mcore.rewards.grader.structure import decide
from retool_mcore.rewards.grader.text import normal_form
from tests.support.grading import metamorphic, statements

FOUND = Path(__file__).with_name("fuzzed.json")
MODULES = (canonical, nodes, text, values)
REMEMBERS = [of for module in MODULES for of in vars(module).values() if hasattr(of, "cache_clear")]
SLOW_S = 0.1
ROUND = 2000
NO_TRUTHS = ("8642097531", r"\frac{83}{499}")
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
    *["(1,2),", "x=", "[1,2]", "5!", "cm ", "10^", "(x+1)", "e^{", "f(", r"\exp(", "1e9", "(A) ", "3:", "mod 7 "],
    *[r"\infty", r"\mathbb{R}", r"\setminus", r"\ne", r"\le", "<", r"\{x|", "^\\circ", r"\prod_{k=1}^", r"\bmod"],
]
repeats = st.sampled_from([1, 1, 1, 1, 1, 2, 3, 30, 10_000])
pieces = st.tuples(st.sampled_from(PIECES), repeats).map(lambda pair: pair[0] * pair[1])
texts = st.builds(
    lambda parts, odd, limit: ("".join(parts) + odd)[:limit],
    st.lists(pieces, min_size=1, max_size=14),
    st.one_of(st.just(""), st.text(max_size=40)),
    st.sampled_from([1024, 1024, 200, 1_000_000]),
)
VALUES = [
    *[
        ("5", "5", "6"),
        ("-7", "-7", "7"),
        ("1200", "1200", "12"),
        (r"\frac{3}{4}", "0.75", "4/3"),
        ("2.5", "5/2", "25"),
    ],
    *[(r"2\sqrt{3}", r"\sqrt{12}", r"3\sqrt{2}"), (r"x^2+1", "1+x^2", "x^2-1"), ("(1,2)", "(1, 2)", "(2,1)")],
    *[
        (r"\{1,2\}", r"\{2,1\}", r"\{1,3\}"),
        ("[1,2)", "[1,2)", "[1,2]"),
        ("2+3i", "3i+2", "2-3i"),
        (r"3\pi", r"\pi\cdot 3", "3"),
    ],
    *[
        ("7 \\text{ cm}", "7 cm", "8 cm"),
        ("x=4", "4", "x=5"),
        (r"\text{Monday}", "Monday", "Tuesday"),
        ("C", "(C)", "D"),
    ],
    *[
        ("n 2^{n-2}", r"2^{n-2}\cdot n", "n 2^{n-1}"),
        (r"2\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}2&4\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}^T", r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}2&1\end{pmatrix}"),
        ("March 15", r"\text{15th of March}", "March 16"),
        ("2 hours 30 minutes", "150 minutes", "3 hours"),
        ("12:00 noon", "12:00 p.m.", "1:00 p.m."),
    ],
]
# `[1,2) \cap [1,2]` is `[1,2)`.
CHEATS = [template for templates in statements.CHANGED.values() for template in templates if template != r"@ \cap #"]
changed = st.sampled_from(CHEATS)
wrapped = st.sampled_from(["@", *statements.WRAPPED])


class Wrong(AssertionError):
    """`found`: {hunt, answer, truth, same, signature}; `same` None: anything but an exception will do."""

    def __init__(self, **found):
        super().__init__(str(found))
        self.found = found


class Hunt:
    """Judges pairs, counts them, and remembers what is known so that each round may find something else."""

    def __init__(self):
        self.known: set[str] = set()
        self.tried: Counter[str] = Counter()
        self.slowest_s, self.slow = 0.0, []

    def judge(self, hunt: str, answer: str, truth: str, same: bool | None, signature: str, open_is_fine=True) -> None:
        self.tried[hunt] += 1
        start = time.process_time()
        try:
            verdict, error = decide(answer, truth), ""
        except Exception as raised:
            trace = raised.__traceback__
            while trace.tb_next is not None:
                trace = trace.tb_next
            verdict, error = None, f"{type(raised).__name__} in {trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        took_s = time.process_time() - start
        if took_s > SLOW_S:  # or was it the collector of hypothesis's own examples?
            for function in REMEMBERS:
                function.cache_clear()
            start = time.process_time()
            with suppress(Exception):
                decide(answer, truth)
            took_s = min(took_s, time.process_time() - start)
        self.slowest_s = max(self.slowest_s, took_s)
        if took_s > SLOW_S and len(self.slow) < 50:
            self.slow.append({"hunt": "slow", "answer": answer[:1100], "truth": truth[:1100], "same": None})
            print(f"{took_s:.2f} s: {answer[:120]!r} against {truth[:60]!r}", flush=True)
        wrong = verdict is not None and same is not None and verdict is not same
        if error or wrong or (verdict is None and same and not open_is_fine):  # undecided is different
            signature = error or signature
            assume(signature not in self.known)
            raise Wrong(hunt=hunt, answer=answer, truth=truth, same=same, signature=signature)


def hunts(hunt: Hunt) -> list:
    def noise(answer, truth):
        same = False if truth in NO_TRUTHS else None
        hunt.judge("noise", answer, truth, same, "accepted")

    def same(text):
        seen = "".join(filter(str.isprintable, text))
        assume(len(text) <= 1000 and normal_form(text).removeprefix(r"\approx").strip() and not seen.endswith("\\"))
        hunt.judge("same", f" {text} ", text, True, "not itself", open_is_fine=False)

    def pairs(rule, random):
        for pair in rule(random):
            left = pair.rule in (*statements.CHANGED, "changed")
            hunt.judge("pairs", pair.answer, pair.truth, pair.same, pair.rule, open_is_fine=left)

    def cheats(value, template, inner, outer):
        text, truth, other = value
        said = statements.filled(template, inner.replace("@", text), other)
        hunt.judge("cheats", outer.replace("@", said), truth, False, f"{template} | {truth}")

    return [
        given(texts, st.one_of(st.sampled_from(NO_TRUTHS), texts))(noise),
        given(texts)(same),
        given(st.sampled_from(metamorphic.RULES), st.randoms(use_true_random=False))(pairs),
        given(st.sampled_from(VALUES), changed, wrapped, wrapped)(cheats),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each one has the next")
    parser.add_argument("--database", default=".hypothesis/grader", help="folder of hypothesis's own examples")
    parser.add_argument("--found", type=Path, default=FOUND)
    args = parser.parse_args()
    kept = json.loads(args.found.read_text()) if args.found.exists() else []
    before, hunt, number = len(kept), Hunt(), args.seed
    options = settings(
        max_examples=ROUND,
        deadline=None,
        database=DirectoryBasedExampleDatabase(args.database),
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    decide("0.5000001", r"\sin 3")  # imports
    end = time.monotonic() + 60 * args.minutes
    while time.monotonic() < end:
        for check in hunts(hunt):
            try:
                seed(number)(options(check))()
            except Wrong as wrong:
                hunt.known.add(wrong.found.pop("signature"))
                print(f"seed {number}: {str(wrong)[:300]}", flush=True)
                kept.append(wrong.found)
                args.found.write_text(json.dumps(kept, indent=1) + "\n")
        number += 1
    kept += [one for one in hunt.slow if one not in kept]
    args.found.write_text(json.dumps(kept, indent=1) + "\n")
    result = {"minutes": args.minutes, "rounds": number - args.seed, "inputs": dict(hunt.tried)}
    result |= {"found": len(kept) - before, "slow": len(hunt.slow), "slowest_cpu_s": round(hunt.slowest_s, 3)}
    print(json.dumps(result))
    return int(len(kept) > before)


if __name__ == "__main__":
    sys.exit(main())
