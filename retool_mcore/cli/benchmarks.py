"""`retool eval benchmark=NAME`: a public benchmark with the data and the grader of its package."""

import difflib
from collections.abc import Sequence

from retool_mcore.config import compose
from retool_mcore.errors import UserError

KEY = "benchmark"
# The overrides that a name stands for; those of the command line come after them and win.
BENCHMARKS = {
    "aime": ["data=math"],  # AIME 2024 and 2025, from the hub or from data.sources.NAME.location
    "bfcl": ["data=bfcl", "recipe.reward.name=bfcl"],
    "human_eval": ["data=human_eval", "recipe.reward.name=human_eval"],
    "reasoning_gym": ["data=reasoning_gym", "recipe.reward.name=reasoning_gym"],
}


def expanded(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with `benchmark=NAME` as its data, its grader and a label that ends in its name.

    Raises UserError for another name, for two of them, and for overrides that make no configuration.
    """
    names = [word.partition("=")[2] for word in overrides if word.partition("=")[0] == KEY]
    if not names:
        return list(overrides)
    if len(names) > 1:
        raise UserError(f"{KEY} is given twice, as {' and '.join(names)}: each benchmark is an evaluation of its own.")
    name = names[0]
    if name not in BENCHMARKS:
        near = difflib.get_close_matches(name, BENCHMARKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"there is no benchmark {name!r}: {hint}The benchmarks are {', '.join(BENCHMARKS)}.")
    words = [*BENCHMARKS[name], *(word for word in overrides if word.partition("=")[0] != KEY)]
    if any(word.partition("=")[0] == "label" for word in words):
        return words
    return [*words, f"label={compose('eval', words).label}-{name}"]
