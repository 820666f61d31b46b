"""Rewrites of known quality, made by a generator: what each verification stage must keep and what it must drop."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

# Kind of rewrite -> the stage that must drop it; None: it must come through.
KINDS = {
    "good": None,
    "good, output formatted otherwise": None,
    "good, output unused": None,
    "good, shared variables": None,
    "tag not closed": "format verification",
    "output without program": "format verification",
    "no box": "format verification",
    "program outside of the tags": "format verification",
    "does not parse": "format verification",
    "wrong output": "execution",
    "fake interpreter text": "execution",
    "program fails": "execution",
    "prints nothing": "execution",
    "wrong answer": "answer verification",
    "two answers": "answer verification",
}
_THINGS = ("marbles", "books", "tiles", "coins", "stamps", "cards", "pencils", "plates", "lamps", "bricks")
_NAMES = ("Ada", "Emmy", "Sofia", "Carl", "Leo", "Paul", "Mary", "Kurt", "Alan", "Grace")


@dataclass(frozen=True)
class Recorded:
    """A problem with reasoning, its true answer, and a rewrite of `kind`."""

    problem: str
    reasoning: str
    answer: str
    kind: str
    rewrite: str

    def source_row(self) -> dict:
        return {"problem": self.problem, "reasoning": self.reasoning, "answer": self.answer}


def recorded(count: int, seed: int = 0) -> list[Recorded]:
    """`count` rows, the kinds in turn."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    return [_row(rng, number, kinds[number % len(kinds)]) for number in range(count)]


def write_source(rows: list[Recorded], path: Path) -> Path:
    path.write_text("".join(json.dumps(row.source_row()) + "\n" for row in rows))
    return path


def _row(rng: random.Random, number: int, kind: str) -> Recorded:
    boxes, each, more = rng.randint(1000, 9999), rng.randint(1000, 9999), rng.randint(100, 999)
    thing, name = rng.choice(_THINGS), rng.choice(_NAMES)
    problem = f"{name} fills {boxes} boxes with {each} {thing} each and keeps {more} {thing} (case {number}). How many?"
    total = boxes * each
    answer = total + more
    reasoning = f"The boxes hold {boxes} times {each}, that is {total}. With {more} more: \\boxed{{{answer}}}"
    return Recorded(problem, reasoning, str(answer), kind, _rewrite(kind, boxes, each, more))


def block(code: str, claim: str) -> str:
    return f"<code>\n```python\n{code}\n```\n</code>\n<interpreter>\n{claim}\n</interpreter>\n"


def _rewrite(kind: str, boxes: int, each: int, more: int) -> str:
    total, answer = boxes * each, boxes * each + more
    code, start = f"print({boxes} * {each} + {more})", "Let a program add it up.\n"
    end = f"So the answer is this.\n<answer>\n\\boxed{{{answer}}}\n</answer>"
    good = start + block(code, str(answer)) + end
    wrong = answer + 1010
    shared = (
        block(f"boxes = {boxes} * {each}\nprint(boxes)", str(total))
        + "Now add.\n"
        + block(f"print(boxes + {more})", str(answer))
    )
    return {
        "good": good,
        "good, output formatted otherwise": start
        + block(f"print({boxes} / {each}, [{total}, {answer}])", f"{boxes / each:.4f}  [{total},{answer}]")
        + end,
        "good, output unused": start + block(code + "\nprint(2**61 - 1)", f"{answer}\n99999") + end,
        "good, shared variables": start + shared + end,
        "tag not closed": good.replace("</code>", ""),
        "output without program": start + f"<interpreter>\n{answer}\n</interpreter>\n" + end,
        "no box": good.replace("\\boxed", ""),
        "program outside of the tags": start + f"```python\n{code}\n```\n" + end,
        "does not parse": start + block(code + ")", str(answer)) + end,
        "wrong output": start + block(code, str(wrong)) + f"The program says {wrong}. " + end,
        "fake interpreter text": start
        + block(f"import math\nprint(math.isqrt({total}))", "count = 4141")
        + "With 4141 at hand the rest follows. "
        + end,
        "program fails": start + block(f"print(undefined_name + {more})", str(answer)) + end,
        "prints nothing": start + block(f"x = {boxes} * {each} + {more}", str(answer)) + end,
        "wrong answer": start + block(code, str(answer)) + f"<answer>\n\\boxed{{{wrong}}}\n</answer>",
        "two answers": start
        + block(code, str(answer))
        + f"It is \\boxed{{{wrong}}} here.\n<answer>\n\\boxed{{{answer}}}\n</answer>",
    }[kind]
