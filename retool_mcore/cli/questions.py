"""The commands that ask something of stored runs, each with the examples below its help."""

from collections.abc import Callable

from retool_mcore.cli.compare import compare
from retool_mcore.cli.explain import explain
from retool_mcore.cli.rescore import rescore

QUESTIONS: dict[Callable, tuple[str, ...]] = {
    explain: ("retool explain runs/quickstart", "retool explain runs/r32 --json why.json"),
    compare: (
        "retool compare study.yaml",
        "retool compare runs/tool-s1 runs/tool-s2 runs/text-s1 runs/text-s2 --plot compared",
        "retool compare runs/quickstart reference:quickstart",
    ),
    rescore: (
        "retool rescore runs/quickstart --reward artist",
        "retool rescore runs/r32 --eval rl --answer final_line",
        "retool rescore runs/r32 --reward my_rewards.partial recipe.filters.all_equal=true --steps 10-20",
    ),
}
