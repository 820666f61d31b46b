r"""Write problems of reasoning-gym and traces for the cold start.

    python -m examples.smollm2.data OUT

OUT/train.jsonl and OUT/eval.jsonl hold problems, OUT/sft.jsonl traces. No problem is in two files. The program of a
trace is run in the sandbox, and what it prints is the trace's output and answer. Traces whose answer is wrong by
reasoning-gym's scorer are left out.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_mcore import Sandbox
from retool_mcore.errors import UserError

SEED = 20
# Half of the traces answer without a program, as collected traces do. The model cannot calculate that well, so the cold
# start leaves RL to find out that a program pays.
TEXT_SHARE = 0.5


@dataclass(frozen=True)
class Family:
    """A generator of reasoning-gym, its parameters, and the program that answers one of its problems."""

    parameters: dict[str, int]
    program: Callable[[dict[str, Any]], str]  # of the problem's metadata


def math_function(name: str) -> Callable[[dict[str, Any]], str]:
    """Return the program of a function of the module `math` over the problem's numbers."""
    return lambda facts: f"import math\nprint(math.{name}({', '.join(map(str, facts['numbers']))}))"


def expression(facts: dict[str, Any]) -> str:
    """Return the program that prints the problem's expression."""
    return f"print({facts['expression']})"


def count_bits(facts: dict[str, Any]) -> str:
    """Return the program that counts the ones of the problem's number."""
    return f'print(bin({facts["number"]}).count("1"))'


def count_letter(facts: dict[str, Any]) -> str:
    """Return the program that counts the problem's letter in its text."""
    return f'print({json.dumps(" ".join(facts["span"]))}.count("{facts["target_letter"]}"))'


# The scorers of these six compare texts or decimal numbers. Some others of the package evaluate the answer as a program
# in the caller's process: never let those score what a policy wrote.
FAMILIES = {
    "chain_sum": Family({"min_terms": 3, "max_terms": 5, "min_digits": 2, "max_digits": 4}, expression),
    "products": Family({"min_digits": 3, "max_digits": 4}, expression),
    "gcd": Family({"max_value": 10000}, math_function("gcd")),
    "lcm": Family({"max_value": 1000}, math_function("lcm")),
    "count_bits": Family({}, count_bits),
    "letter_counting": Family({"min_words": 4, "max_words": 8}, count_letter),
}


def right(family: str, answer: str, row: dict[str, Any]) -> bool:
    """Whether reasoning-gym's scorer gives full marks; it gives a part for an answer that contains the right one."""
    import reasoning_gym  # here and below: of the extra, which only this example's own commands see

    return reasoning_gym.get_score_answer_fn(family)(answer, row) == 1.0


def problems(family: str, count: int) -> list[dict[str, Any]]:
    """Return `count` different problems of a family: {question, answer, family, metadata}."""
    import reasoning_gym

    drawn = reasoning_gym.create_dataset(family, seed=SEED, size=2 * count, **FAMILIES[family].parameters)
    different = {entry["question"].strip(): entry for entry in drawn}
    if len(different) < count:
        raise UserError(f"reasoning-gym has no {count} different problems of {family}: ask for fewer rows.")
    return [
        {"question": question, "answer": entry["answer"], "family": family, "metadata": entry["metadata"]}
        for question, entry in list(different.items())[:count]
    ]


def trace(row: dict[str, Any], sandbox: Sandbox) -> dict[str, Any] | None:
    """Return the row with a program's run and the answer that it printed; None where that answer is not right."""
    code = FAMILIES[row["family"]].program(row["metadata"])
    output = sandbox.run(code).stdout.strip()
    if not right(row["family"], output, row):
        return None
    return messages(row["question"], with_program(code, output))


def with_program(code: str, output: str) -> str:
    """Return a response that runs a program and answers its output."""
    return f"<code>\n```python\n{code}\n```\n</code>\n<interpreter>\n{output}\n</interpreter>\n\\boxed{{{output}}}"


def messages(question: str, text: str) -> dict[str, Any]:
    """Return a row of traces: the question and the response."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": text}]}


def write(folder: Path, *, train: int, evaluation: int, sft: int) -> dict[str, int]:
    """Write the three files, with so many rows of every family; return the rows of each, and the wrong programs."""
    rows: dict[str, list[dict[str, Any]]] = {"train": [], "eval": [], "sft": []}
    wrong = 0
    with Sandbox() as sandbox:
        for family in FAMILIES:
            drawn = problems(family, train + evaluation + sft)
            rows["train"] += drawn[:train]
            rows["eval"] += drawn[train : train + evaluation]
            for number, row in enumerate(drawn[train + evaluation :]):
                if number < TEXT_SHARE * sft:
                    rows["sft"].append(messages(row["question"], f"\\boxed{{{row['answer']}}}"))
                elif traced := trace(row, sandbox):
                    rows["sft"].append(traced)
                else:
                    wrong += 1
    folder.mkdir(parents=True, exist_ok=True)
    for name, written in rows.items():
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in written)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return {name: len(written) for name, written in rows.items()} | {"wrong": wrong}


def main() -> int:
    """Write the files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--train", type=int, default=60, help="problems of a family for RL")
    parser.add_argument("--eval", type=int, default=8, help="problems of a family for the evaluation")
    parser.add_argument("--sft", type=int, default=40, help="traces of a family")
    args = parser.parse_args()
    counts = write(args.output, train=args.train, evaluation=args.eval, sft=args.sft)
    print(
        f"{counts['train']} problems for RL, {counts['eval']} for the evaluation, {counts['sft']} traces; "
        f"{counts['wrong']} programs left out, which reasoning-gym's scorer calls wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
