"""Train and validation halves that share no problem, so that a validation figure measures more than memory."""

import hashlib
from collections.abc import Sequence
from typing import TypeVar

from retool_mcore.data.records import Problem, Trace, normalise_question
from retool_mcore.errors import UserError

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
