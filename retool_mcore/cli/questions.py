"""The commands that ask something of stored runs, each with the examples below its help."""

from collections.abc import Callable

from retool_mcore.cli.explain import explain
from retool_mcore.cli.rescore import rescore

QUESTIONS: dict[Callable, tuple[str, ...]] = {
    explain: ("retool explain runs/quickstart", "retool explain runs/r32 --json why.json"),
    rescore: (
        "retool rescore runs/quickstart --reward artist",
        "retool rescore runs/r32 --eval rl --answer final_line",
        "retool rescore runs/r32 --reward my_rewards.partial recipe.filters.all_equal=true --steps 10-20",
    ),
}
