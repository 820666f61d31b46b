"""The runs of a comparison's plan for `retool view`."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.view.server import Study


def study_of(words: Sequence[Path]) -> tuple[list[Path], Study | None]:
    """The folders to show, and the plan if `words` is one. Raises UserError for a plan none of whose runs has begun."""
    if len(words) != 1 or words[0].suffix not in (".yaml", ".yml"):
        return list(words), None
    from retool_mcore.analysis.compare import costs, judge, read_arms
    from retool_mcore.analysis.plan import read_plan

    path = words[0]
    plan = read_plan(path)
    folders = {plan.folder(arm, seed): arm for arm in plan.arms for seed in plan.seeds}
    begun = {folder: arm for folder, arm in folders.items() if (folder / "rl" / "metrics").is_dir()}
    if not begun:
        raise UserError(f"{path}: none of its runs has begun RL: {', '.join(map(str, folders))}.")

    def compare() -> Mapping:
        runs, missing = read_arms(plan, path)
        return {"plan": str(path), "claims": judge(plan, runs), "costs": costs(runs), "missing": missing}

    return list(begun), Study(list(begun.values()), compare)
