"""Rewrites of known quality, made by a generator: what each verification stage must keep and what it must drop.

A label says what the generator did to the rewrite; no part of the pipeline is asked.
"""

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path

# Kind of rewrite -> the stage that must drop it; None: it must come through.
KINDS = {
    "good": None,
    "good, output formatted otherwise": None,
    "good, output unused": None,
    "shared variables": "execution",
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
# Close to the line on either side.
NEAR_MISSES = {
    "good, trailing white space": None,
    "good, float noise": None,
    "good, rounded": None,
    "good, set in another order": None,
    "good, thousands separated": None,
    "good, quotes otherwise": None,
    "good, no fence": None,
    "good, answer with its unit": None,
    "good, answer with separators": None,
    "good, answer as a decimal": None,
    "tags in tags": "format verification",
    "text before the output": "format verification",
    "box outside of answer": "format verification",
    "empty box": "format verification",
    "print without parentheses": "format verification",
    "wrong last digit": "execution",
    "wrong sign": "execution",
    "wrong flag, quoted": "execution",
    "program hangs": "execution",
    "answer off by one": "answer verification",
    "answer with the wrong sign": "answer verification",
    "program solves another problem": "answer verification",
}
# What the stages miss: it wants a reader who understands the text.
MISSED = {
    "wrong flag, in other words": "execution",
    "wrong output, text computes with it": "execution",
    "wrong output, rounded up in the text": "execution",
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


def recorded(count: int, seed: int = 0, kinds=tuple(KINDS)) -> list[Recorded]:
    """`count` rows, the kinds in turn."""
    rng = random.Random(seed)
    return [_row(rng, number, kinds[number % len(kinds)]) for number in range(count)]


def write_source(rows: list[Recorded], path: Path) -> Path:
    path.write_text("".join(json.dumps(row.source_row()) + "\n" for row in rows))
    return path


def _row(rng: random.Random, number: int, kind: str) -> Recorded:
    boxes, each, more = rng.randint(1000, 9999), rng.randint(1000, 9999), 2 * rng.randint(50, 499) + 1
    thing, name = rng.choice(_THINGS), rng.choice(_NAMES)
    problem = f"{name} fills {boxes} boxes with {each} {thing} each and keeps {more} {thing} (case {number}). How many?"
    total = boxes * each
    answer = total + more
    reasoning = f"The boxes hold {boxes} times {each}, that is {total}. With {more} more: \\boxed{{{answer}}}"
    return Recorded(problem, reasoning, str(answer), kind, _rewrite(kind, boxes, each, more, thing))


def block(code: str, claim: str) -> str:
    return f"<code>\n```python\n{code}\n```\n</code>\n<interpreter>\n{claim}\n</interpreter>\n"


def _end(answer: object) -> str:
    return f"So the answer is this.\n<answer>\n\\boxed{{{answer}}}\n</answer>"


def _rewrite(kind: str, boxes: int, each: int, more: int, thing: str) -> str:
    total, answer = boxes * each, boxes * each + more
    start = f"The boxes hold {boxes} times {each}. Let a program add it up.\n"
    code, end = f"print({boxes} * {each} + {more})", _end(answer)
    solved = start + block(code, str(answer))
    wrong = answer + 1010
    shared = (
        block(f"boxes = {boxes} * {each}\nprint(boxes)", str(total))
        + "Now add.\n"
        + block(f"print(boxes + {more})", str(answer))
    )

    def aside(program: str, claim: object, text: str = "") -> str:
        """A good rewrite with a program of its own before it."""
        return "First look at a part.\n" + block(program, str(claim)) + text + "\n" + solved + end

    # Each sum of tenths is off in its last binary digits.
    tenths = f"print(sum([0.1] * {more}))"
    part, root = boxes + each, math.sqrt(boxes)
    made = {
        "good": solved + end,
        "good, output formatted otherwise": start
        + block(f"print({boxes} / {each}, [{total}, {answer}])", f"{boxes / each:.4f}  [{total},{answer}]")
        + end,
        "good, output unused": start + block(code + "\nprint(2**61 - 1)", f"{answer}\n99999") + end,
        "shared variables": start + shared + end,
        "tag not closed": (solved + end).replace("</code>", ""),
        "output without program": start + f"<interpreter>\n{answer}\n</interpreter>\n" + end,
        "no box": (solved + end).replace("\\boxed", ""),
        "program outside of the tags": start + f"```python\n{code}\n```\n" + end,
        "does not parse": start + block(code + ")", str(answer)) + end,
        "wrong output": start + block(code, str(wrong)) + f"The program says {wrong}. " + end,
        "fake interpreter text": start
        + block(f"import math\nprint(math.isqrt({total}))", "count = 4141")
        + "With 4141 at hand the rest follows. "
        + end,
        "program fails": start + block(f"print(undefined_name + {more})", str(answer)) + end,
        "prints nothing": start + block(f"x = {boxes} * {each} + {more}", str(answer)) + end,
        "wrong answer": solved + f"<answer>\n\\boxed{{{wrong}}}\n</answer>",
        "two answers": solved + f"It is \\boxed{{{wrong}}} here.\n" + end,
        "good, trailing white space": start + block(code, f"{answer}   \n\n") + end,
        "good, float noise": aside(tenths, f"{more // 10}.{more % 10}"),
        "good, rounded": aside(f"import math\nprint(math.sqrt({boxes}))", f"{root:.3f}", f"About {root:.3f}."),
        "good, set in another order": aside(
            f"print({{'{thing}', 'boxes', 'parts'}})", f"{{'parts', '{thing}', 'boxes'}}"
        ),
        "good, thousands separated": aside(f"print({total})", f"{total:,}", f"The boxes hold {total:,}."),
        "good, quotes otherwise": aside(
            f"from collections import Counter\nprint(dict(Counter({{'{thing}': {part}}})))", f'{{"{thing}": {part}}}'
        ),
        "good, no fence": (solved + end).replace("```python\n", "").replace("\n```\n", "\n"),
        "good, answer with its unit": solved + _end(f"{answer}\\text{{ {thing}}}"),
        "good, answer with separators": solved + _end(f"{answer:,}".replace(",", "{,}")),
        "good, answer as a decimal": solved + _end(f"{answer}.0"),
        "tags in tags": start + f"<code>\n{block(code, str(answer))}</code>\n" + end,
        "text before the output": (solved + end).replace("</code>\n", "</code>\nIt prints:\n"),
        "box outside of answer": solved + f"It is \\boxed{{{answer}}}.\n<answer>\n{answer}\n</answer>",
        "empty box": solved + _end(""),
        "print without parentheses": start + block(f"print {answer}", str(answer)) + end,
        "wrong last digit": aside(f"print({part})", part + 1, f"That makes {part + 1}."),
        "wrong sign": aside(f"print(-{part})", part, f"We get {part}, a positive number."),
        "wrong flag, quoted": aside(f"print({part} % 2 == {1 - part % 2})", "True", "It says True."),
        "program hangs": aside("while True:\n    pass", part),
        "answer off by one": solved + _end(answer + 1),
        "answer with the wrong sign": solved + _end(-answer),
        "program solves another problem": start
        + block(f"print({boxes} * {more})", str(boxes * more))
        + _end(boxes * more),
        "wrong flag, in other words": aside(
            f"print({part} % 2 == {1 - part % 2})", "True", "So the parity is as hoped."
        ),
        "wrong output, text computes with it": aside(
            f"print({part})", part + 1010, f"Twice that is {2 * part + 2020}."
        ),
        "wrong output, rounded up in the text": aside(
            f"print({part})", part + 10_000, f"Say {(part + 10_000) // 1000 + 1} thousand."
        ),
    }
    return made[kind]
