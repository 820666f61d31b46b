"""Problems of the training data that are never trained on: a checkpoint is chosen by them, not by the test set.

Choosing by the problems that are reported afterwards would make the report the best of several draws.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from retool_mcore.data.records import normalise_question
from retool_mcore.data.schema import write_parquet
from retool_mcore.errors import UserError

SPLIT = "held_back"  # in extra_info


def hold_back(
    train: Iterable[Path], others: Iterable[Path], path: Path, *, count: float, seed: int, key: str = "data.held_back"
) -> str:
    """Move `count` problems, below 1 a share of them, of the RL parquets `train` to `path`; returns the line to print.

    Problems are ranked by SHA-256 of (seed, question), as in split.py; those that are also in `others` (parquets of the
    evaluation and the cold start) are not taken. Raises UserError when there are too few.
    """
    rows = {file: pq.read_table(file).to_pylist() for file in train}
    known = {_problem(row) for own in rows.values() for row in own}
    count = int(count) if count >= 1 else max(1, round(count * len(known)))
    free = known - {_problem(row) for file in others for row in pq.read_table(file).to_pylist()}
    if count >= len(known) or count > len(free):
        raise UserError(f"{key}={count} of {len(known)} problems, {len(free)} in no other file: lower it.")
    taken = set(sorted(free, key=lambda problem: hashlib.sha256(f"{seed}\n{problem}".encode()).digest())[:count])
    held = []
    for file, own in rows.items():
        schema = pq.read_schema(file)
        held += [row | {"extra_info": row["extra_info"] | {"split": SPLIT}} for row in own if _problem(row) in taken]
        write_parquet((row for row in own if _problem(row) not in taken), schema, file)
    write_parquet(held, schema, path)
    return (
        f"held back: {count} of {len(known)} training problems ({len(free)} are in no other file), seed {seed}: {path}"
    )


def weigh(path: Path, weight: float, seed: int) -> int:
    """Repeat the rows of an RL parquet `weight` times, 2.5: twice and half of them once more; returns their number."""
    rows = pq.read_table(path).to_pylist()
    ranked = sorted(rows, key=lambda row: hashlib.sha256(f"{seed}\n{_problem(row)}".encode()).digest())
    repeated = rows * int(weight) + ranked[: round(weight % 1 * len(rows))]
    write_parquet(repeated, pq.read_schema(path), path)
    return len(repeated)


def shared_problem(a: Iterable[Path], b: Iterable[Path]) -> str | None:
    """The question of a problem that is in a parquet of `a` and in one of `b`; None where there is none."""
    of_a, of_b = ({_problem(row) for file in files for row in pq.read_table(file).to_pylist()} for files in (a, b))
    return min(of_a & of_b, default=None)


def _problem(row: dict) -> str:
    place = row if "question" in row else row["extra_info"]  # of SFT, of RL
    return normalise_question(place["question"] + place.get("repository", ""))  # two repositories may have one issue
