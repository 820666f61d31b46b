"""How well each verification stage of the cold-start pipeline judges: precision and recall on rows of known quality.

    python -m benchmarks.coldstart.verification   # 1,000 rewrites, 300 reasonings and 300 judge's replies
    python -m benchmarks.coldstart.verification --rewrites 250

Rewrites (recorded_rewrites.py), reasonings and replies are made by generators, which label them by what
they did to them; half are close to the line on either side. A stage's positives are the rows that it drops. Its recall
is over the rows that are labelled for it and reach it; its precision over all that it drops. `all` is over the three
stages that a rewrite passes. Beside it stands the plain way: keep what has <code> and the right number in its box.
"""

import argparse
import asyncio
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks import provenance
from benchmarks.sandbox.measure import PACKAGES
from retool_mcore.coldstart.client import CallCache, Client
from retool_mcore.coldstart.config import Execution, Judge, Model
from retool_mcore.coldstart.execution import Executor
from retool_mcore.coldstart.normalise import check_form
from retool_mcore.coldstart.pipeline import outcomes_async
from retool_mcore.coldstart.rows import Row
from retool_mcore.coldstart.verify import check_answer, check_by_judge, check_rule
from retool_mcore.sandbox.create import create_sandbox
from tests.support.coldstart.model_double import MODEL, serving
from tests.support.coldstart.recorded_rewrites import KINDS, MISSED, NEAR_MISSES, recorded

STAGES = ("format verification", "execution", "answer verification")
LABELS = KINDS | NEAR_MISSES | MISSED

# Kind -> (text for a true answer, whether the row must be dropped).
REASONINGS = {
    "boxed": (lambda n: f"It adds up to \\boxed{{{n}}}.", False),
    "boxed, with separators": (lambda n: f"So \\boxed{{{n:,}}}".replace(",", "{,}"), False),
    "boxed, with a unit": (lambda n: f"So \\boxed{{{n}\\text{{ marbles}}}}", False),
    "boxed, as a decimal": (lambda n: f"So \\boxed{{{n}.0}}", False),
    "boxed, as a sum": (lambda n: f"So \\boxed{{{n - 7} + 7}}", False),
    "boxed, as a fraction": (lambda n: f"So \\boxed{{\\frac{{{3 * n}}}{{3}}}}", False),
    "boxed twice": (lambda n: f"So \\boxed{{{n}}}, that is\n\\boxed{{{n}}}", False),
    "last line": (lambda n: f"We add.\nThe answer is {n}.", False),
    "off by one": (lambda n: f"So \\boxed{{{n + 1}}}", True),
    "wrong sign": (lambda n: f"So \\boxed{{-{n}}}", True),
    "ten times as much": (lambda n: f"So \\boxed{{{n}0}}", True),
    "rounded": (lambda n: f"So \\boxed{{{n // 100}00}}", True),
    "corrected into an error": (lambda n: f"It is \\boxed{{{n}}}. No, \\boxed{{{n + 9}}}.", True),
    "last line wrong": (lambda n: f"We add.\nThe answer is {n + 9}.", True),
    "no answer": (lambda n: f"We add up to {n} and then go on with", True),
}
REPLIES = {
    "JSON": (lambda n: json.dumps({"answer": str(n)}), False),
    "JSON, a number": (lambda n: json.dumps({"answer": n}), False),
    "JSON, fenced": (lambda n: f'```json\n{{"answer": "{n}"}}\n```', False),
    "JSON after thoughts": (lambda n: f'Let f = {{1}}. Then {{"answer": "{n:,}"}}', False),
    "JSON, LaTeX": (lambda n: json.dumps({"answer": f"\\frac{{{3 * n}}}{{3}}"}), False),
    "box": (lambda n: f"I think \\boxed{{{n}}}", False),
    "off by one": (lambda n: json.dumps({"answer": str(n + 1)}), True),
    "a range": (lambda n: json.dumps({"answer": f"{n} or {n + 1}"}), True),
    "not known": (lambda n: json.dumps({"answer": "cannot be determined"}), True),
    "null": (lambda n: '{"answer": null}', True),
    "cut": (lambda n: f'{{"answer": "{n}', True),
    "other key": (lambda n: json.dumps({"result": str(n)}), True),
    "empty": (lambda n: "", True),
}


def numbered(kinds: dict, count: int) -> list[tuple[str, int, str]]:
    """(kind, true answer, text) of `count` rows, the kinds in turn."""
    rng = random.Random(0)
    names = list(kinds)
    answers = [rng.randint(10_000, 9_999_999) for _ in range(count)]
    return [(names[i % len(names)], n, kinds[names[i % len(names)]][0](n)) for i, n in enumerate(answers)]


async def through(check, rows: list[Row], concurrency: int = 8) -> tuple[list[Row], set[int]]:
    """(rows that pass, in order; indices of those that do not)."""
    found = []
    await outcomes_async(check, iter(rows), concurrency, found.append)
    kept = sorted((outcome.row for outcome in found if outcome.row), key=lambda row: row.index)
    return kept, {outcome.index for outcome in found if outcome.row is None}


def scored(dropped: set[int], wanted: set[int], bad: set[int], kind_of) -> dict:
    """Precision and recall of dropping `dropped`, where `wanted` are this stage's and `bad` all that should go."""
    return {
        "should_be_dropped": len(wanted),
        "dropped": len(dropped),
        "precision": len(dropped & bad) / max(1, len(dropped)),
        "recall": len(dropped & wanted) / max(1, len(wanted)),
        "wrongly_kept": dict(Counter(kind_of(index) for index in wanted - dropped)),
        "wrongly_dropped": dict(Counter(kind_of(index) for index in dropped - bad)),
    }


def judged_by(check: Callable[[Row], Row]) -> Callable[[Row], Awaitable[Row]]:
    async def judge(row: Row) -> Row:
        return check(row)

    return judge


async def dual(count: int) -> dict:
    """The rule on reasonings, and the judge on a server's recorded replies."""
    made = numbered(REASONINGS, count)
    rows = [Row(f"k{i}", i, "?", text, str(n)) for i, (_, n, text) in enumerate(made)]
    _, dropped = await through(judged_by(check_rule), rows)
    bad = {i for i, (kind, *_) in enumerate(made) if REASONINGS[kind][1]}
    table = {"rule verification": {"rows": count} | scored(dropped, bad, bad, lambda i: made[i][0])}

    made = numbered(REPLIES, count)
    rows = [Row(f"k{i}", i, f"Problem {i}?", "", str(n)) for i, (_, n, _) in enumerate(made)]
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(lambda content: made[int(re.search(r"Problem (\d+)\?", content)[1])][2]) as double,
    ):
        cache = CallCache(Path(folder) / "calls.sqlite")
        client = Client(Model(url=double.url, name=MODEL), "judge", cache)
        _, dropped = await through(partial(check_by_judge, Judge(), client), rows)
        await client.close()
        cache.close()
    bad = {i for i, (kind, *_) in enumerate(made) if REPLIES[kind][1]}
    return table | {"judge verification": {"rows": count} | scored(dropped, bad, bad, lambda i: made[i][0])}


async def rewrites(count: int, on_mismatch: str) -> dict:
    made = recorded(count, kinds=tuple(LABELS))
    labels = [LABELS[row.kind] for row in made]
    bad = {i for i, label in enumerate(labels) if label}
    sandbox = create_sandbox({"kind": "local", "timeout_s": 5.0})

    executor = Executor(Execution(on_mismatch=on_mismatch), sandbox)
    checks = (judged_by(check_form), executor, judged_by(check_answer))
    left = [Row(f"k{i}", i, r.problem, r.reasoning, r.answer, rewrite=r.rewrite) for i, r in enumerate(made)]
    table, gone = {}, set()
    for stage, check in zip(STAGES, checks, strict=True):
        wanted = {row.index for row in left if labels[row.index] == stage}
        reached = len(left)
        left, dropped = await through(check, left)
        gone |= dropped
        table[stage] = {"rows": reached} | scored(dropped, wanted, bad, lambda i: made[i].kind)
    await sandbox.close()
    plain = {
        i for i, r in enumerate(made) if "<code>" not in r.rewrite or f"\\boxed{{{r.answer}}}" not in r.rewrite[-100:]
    }
    table["all"] = {"rows": count} | scored(gone, bad, bad, lambda i: made[i].kind)
    table["the plain way"] = {"rows": count} | scored(plain, bad, bad, lambda i: made[i].kind)
    return table


def show(title: str, table: dict) -> None:
    print(f"{title}\n| stage | rows | should go | dropped | precision | recall |\n|---|---|---|---|---|---|")
    for stage, f in table.items():
        figures = f"{f['rows']} | {f['should_be_dropped']} | {f['dropped']} | {f['precision']:.3f} | {f['recall']:.3f}"
        print(f"| {stage} | {figures} |")
    for stage, f in table.items():
        if stage not in ("all", "the plain way"):
            for name in ("wrongly_kept", "wrongly_dropped"):
                for kind, number in f[name].items():
                    print(f"{stage}, {name.replace('_', ' ')}: {number} x {kind}")
    print()


async def measured(arguments: argparse.Namespace) -> dict:
    tables = {"dual verification": await dual(arguments.replies)}
    for mode in ("repair", "drop"):
        tables[f"on_mismatch: {mode}"] = await rewrites(arguments.rewrites, mode)
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rewrites", type=int, default=1000, help=f"of {len(LABELS)} kinds in turn")
    parser.add_argument("--replies", type=int, default=300, help="reasonings, and judge's replies")
    arguments = parser.parse_args()
    tables = asyncio.run(measured(arguments))
    for title, table in tables.items():
        show(title, table)
    provenance.write("coldstart", provenance.made(PACKAGES), {"judged": tables})


if __name__ == "__main__":
    main()
