"""Truths that no answer meets as they are written: two forms of one value, which the grader reads as two values."""

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq

from retool_mcore.rewards.equivalence import equivalent
from retool_mcore.rewards.grader.text import MAX_CHARS

_THAT_IS = re.compile(r"(?<![A-Za-z\\])(?:i\. ?e\.|that is|equivalently)(?![A-Za-z])")
_OR = re.compile(r"(?:,\s*+)?(?:\\(?:text|mathrm|mbox)\s*+\{\s*+(?:,\s*+)?or\s*+\}|(?<![A-Za-z\\])or(?![A-Za-z]))")


def names_two_forms(truth: str) -> bool:
    """Whether a truth gives one value in two forms: `3/4 or 0.75`, `\\mathbb{R} (i.e., all)`."""
    if len(truth) > MAX_CHARS:
        return False
    if _THAT_IS.search(truth):
        return True
    parts = [part.strip(" $.") for part in _OR.split(truth)]
    return len(parts) > 1 and all(parts) and all(equivalent(part, parts[0]) for part in parts[1:])


def report_two_forms(files: Iterable[Path]) -> list[str]:
    """Return a line for the terminal where rows of prepared problems have such truths, else []."""
    two_forms: list[str] = []
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(columns=["reward_model"]):
            truths = [row["ground_truth"] for row in batch.column(0).to_pylist()]
            two_forms += [truth for truth in truths if names_two_forms(truth)]
    if not two_forms:
        return []
    shown = " ".join(two_forms[0].split())[:80]
    return [
        f"  {len(two_forms)} rows whose truth names two forms of one value, which no single answer meets, as {shown!r}"
    ]
