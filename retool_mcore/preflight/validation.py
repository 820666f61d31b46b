"""Can the validation inside the run choose a checkpoint, and what does it cost?"""

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path

from retool_mcore.data.held_back import shared_problem
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import count_rows


def check_validation(train: Mapping, files: Mapping[str, Sequence[Path]], tests: str | Sequence[str]) -> None:
    """Print what validation costs, once it is by problems that nothing else uses. Raises UserError.

    files: of the keys train_files and held_back_files; tests: data.validation_files, which RL does not need.
    """
    if not (told := told_cost(train, problems=count_rows(files["held_back_files"]))):
        return
    there = [path for path in map(Path, [tests] if isinstance(tests, str) else tests) if path.is_file()]
    for key, paths in (("train_files", files["train_files"]), ("validation_files", there)):
        if (question := shared_problem(paths, files["held_back_files"])) is not None:
            raise UserError(
                f"data.held_back_files and data.{key} share the problem {question[:80]!r}: a checkpoint is chosen by "
                "problems that are neither trained on nor reported; run `retool prepare` again, or give other files."
            )
    print(told, flush=True)


def told_cost(train: Mapping, *, problems: int) -> str:
    """What to tell of the validation of the section `train` on so many problems; "" where there is none.

    The last step's comes on top. Raises UserError when it costs more than train.eval_share, or leaves out checkpoints.
    """
    every, save = train["eval_every"], train["save_every"]
    if every < 1:
        return ""
    step, generated = train["batch"] * train["n"], problems * train["eval_samples"]
    trained = step * min(every, train["steps"])
    told = (
        f"validation: {problems} problems x {train['eval_samples']} samples every {every} steps: {generated:,} "
        f"trajectories beside {trained:,} trained on, {generated / trained:.1%}"
    )
    if generated > train["eval_share"] * trained:
        raise UserError(
            f"{told}, more than train.eval_share={train['eval_share']:g}: raise it, lower train.eval_samples, or set "
            f"train.eval_every={ceil(generated / step / train['eval_share'])}."
        )
    if str(train["keep_best"]).startswith("val/") and save > 0 and save % every:
        raise UserError(
            f"train.save_every={save} is no multiple of train.eval_every={every}, and what is not validated is never "
            f"the best: set train.eval_every={save}, or train.keep_best=null."
        )
    return told
