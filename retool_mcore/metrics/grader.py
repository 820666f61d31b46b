"""Which part of the grader decided a step's answers, and how many comparisons it gave up."""

from collections import Counter
from collections.abc import Mapping, Sequence

# rewards/equivalence.py: before math-verify, from memory, by math-verify, ended in a kill or crash;
# backends/verl/reward_fn.py: scoring itself raised.
PARTS = ("front", "memo", "engine", "killed", "crashed")


def grader_metrics(records: Sequence[Mapping]) -> dict[str, float]:
    """Answers of these records by the part that decided, each of PARTS; {} when none was compared.

    records: with `graded_by` of the reward (backends/verl/reward_fn.py), "" where there was no answer to compare.
    """
    counts = Counter(record["graded_by"] for record in records if record.get("graded_by"))
    return {part: float(counts[part]) for part in PARTS} if counts else {}
