r"""Write the traces of the study's cold starts.

    python -m examples.real_model.traces OUT --prepared RUN/data

OUT/text.jsonl answers without a program. OUT/tool.jsonl has the same questions; of every two one runs a program in the
sandbox and answers what it printed, and the other answers without one. OUT/small.jsonl is a third of tool.jsonl. No
question of RUN/data is in a trace. Traces whose answer reasoning-gym's scorer does not give full marks are left out.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from examples.real_model.families import EASY, TRAINED, Family
from examples.smollm2.data import messages, right, with_program
from retool_mcore import Sandbox
from retool_mcore.errors import UserError

SEED = 2_000_000_011  # beyond the seeds that `data=reasoning_gym` draws from; the questions are compared as well


def asked(prepared: Path) -> set[str]:
    """Return the questions of all rows below a folder of prepared data."""
    return {
        row["extra_info"]["question"].strip()
        for path in prepared.rglob("*.parquet")
        for row in parquet.read_table(path, columns=["extra_info"]).to_pylist()
    }


def fresh(own: Family, count: int, taken: set[str]) -> Iterator[dict[str, Any]]:
    """Yield `count` problems whose questions are not in `taken`, and add them to it."""
    import reasoning_gym  # of the extra `reasoning-gym`; here, since no other command of the example needs it

    for entry in reasoning_gym.create_dataset(own.family, seed=SEED, size=20 * count, **own.parameters):
        question = entry["question"].strip()
        if question not in taken:
            taken.add(question)
            yield {**entry, "question": question}
            count -= 1
            if not count:
                return
    raise UserError(f"reasoning-gym has too few different problems of {own.family}: ask for fewer traces.")


def write(folder: Path, prepared: Path, *, sft: int) -> dict[str, int]:
    """Write the files, `sft` questions of every family; return the rows, and the programs left out."""
    taken = asked(prepared)
    text: list[tuple[str, str]] = []
    tool: list[tuple[str, str]] = []
    wrong = 0
    with Sandbox() as sandbox:
        for own in (TRAINED | EASY).values():
            for number, row in enumerate(fresh(own, sft, taken)):
                direct = f"\\boxed{{{row['answer']}}}"
                if number % 2:
                    text.append((row["question"], direct))
                    tool.append((row["question"], direct))
                    continue
                code = own.program(row["metadata"])
                output = sandbox.run(code).stdout.strip()
                if not right(own.family, output, row):
                    wrong += 1
                    continue
                text.append((row["question"], direct))
                tool.append((row["question"], with_program(code, output)))
    order = random.Random(SEED).sample(range(len(text)), len(text))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in {"text": text, "tool": tool}.items():
        lines = (_line(*rows[number]) for number in order)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    lines = (_line(*tool[number]) for number in order[: len(order) // 3])
    (folder / "small.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"rows": len(text), "wrong": wrong}


def _line(question: str, response: str) -> str:
    return json.dumps(messages(question, response), ensure_ascii=False) + "\n"


def main() -> int:
    """Write the files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--prepared", type=Path, required=True, help="prepared data, whose questions are left out")
    parser.add_argument("--sft", type=int, default=96, help="questions of a family")
    args = parser.parse_args()
    counts = write(args.output, args.prepared, sft=args.sft)
    print(
        f"{counts['rows']} traces of each kind; {counts['wrong']} left out, whose program's answer has not full marks"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
