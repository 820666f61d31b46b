"""Problems that are never trained on: halves that share none, and those by which a checkpoint is chosen.

Choosing by the problems that are reported afterwards would make the report the best of several draws.
"""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

from retool_mcore.data.records import Problem, Trace, normalise_question
from retool_mcore.data.schema import ENVIRONMENT, joined, write_parquet
from retool_mcore.errors import UserError

SPLIT = "held_back"  # in extra_info


def hold_back(
    train: Iterable[Path], others: Iterable[Path], path: Path, *, count: float, seed: int, key: str = "data.held_back"
) -> str:
    """Move `count` problems, below 1 a share of them, of the RL parquets `train` to `path`; returns the line to print.

    Problems are ranked by SHA-256 of (seed, question), as below; those that are also in `others` (parquets of the
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
    schemas = {file: pq.read_schema(file) for file in rows}
    for file, own in rows.items():
        held += [row | {"extra_info": row["extra_info"] | {"split": SPLIT}} for row in own if _problem(row) in taken]
        write_parquet((row for row in own if _problem(row) not in taken), schemas[file], file)
    write_parquet(held, joined(schemas.values()), path)
    of = f"{len(known)} training problems ({len(free)} are in no other file)"
    return f"held back: {count} of {of}, seed {seed}: {path}"


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
    if row.get("ability") == ENVIRONMENT:  # many episodes begin with the same words; the seed tells them apart
        return f"{row['data_source']} {row['extra_info']['index']}"
    place = row if "question" in row else row["extra_info"]  # of SFT, of RL
    return normalise_question(place["question"] + place.get("repository", ""))  # two repositories may have one issue


Record = TypeVar("Record", Problem, Trace)


def split_by_problem(
    records: Sequence[Record], validation_fraction: float, seed: int
) -> tuple[list[Record], list[Record]]:
    """(train, validation), each in the order of `records`; every record of one question lands on the same side.

    A question's side follows from its rank by SHA-256 of (seed, question): it depends neither on the order of rows nor
    on how many traces a question has. Raises UserError when the fraction would leave either side without a problem.
    """
    keys = [normalise_question(record.question) for record in records]
    ranked = sorted(set(keys), key=lambda key: hashlib.sha256(f"{seed}\n{key}".encode()).digest())
    count = round(validation_fraction * len(ranked))
    if not 0 < count < len(ranked):
        raise UserError(
            f"validation_fraction={validation_fraction} of {len(ranked)} problems puts {count} into validation: "
            "expected at least one problem on each side."
        )
    chosen = set(ranked[:count])
    train = [record for record, key in zip(records, keys, strict=True) if key not in chosen]
    validation = [record for record, key in zip(records, keys, strict=True) if key in chosen]
    return train, validation
