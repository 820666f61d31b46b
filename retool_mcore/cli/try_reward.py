"""`retool reward try`: what texts of one's own are worth to a reward."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

_SHOWN = 70  # characters of a question and of a text


def try_reward(
    place: Annotated[
        Path, Argument(metavar="RUN|FILE", help="Folder of a run, or a parquet with problems of `retool prepare`.")
    ],
    text: Annotated[Path, Option(metavar="FILE", help="The response. Of a .jsonl each line: a text, or {text, row}.")],
    keys: Annotated[
        list[str] | None, Argument(metavar="[KEY=VALUE]...", help="As of `retool rl`: recipe.reward.name=mine.brief.")
    ] = None,
    row: Annotated[int, Option(metavar="N", help="The problem that it answers, from 0 in the training files.")] = 0,
) -> None:
    """Judge texts by a run's reward, without an engine: the reward, the verdict on the answer, what counts as right,
    and which filter would leave it out."""
    from retool_mcore.preflight.reward import Trial, texts  # reads data: not for --help

    responses = texts(text)
    trial = Trial(place, keys or ())
    tried = [trial.judge(one, row if own is None else own) for one, own in responses]
    for one in tried:
        question, truth = one.row["extra_info"]["question"], one.row["reward_model"]["ground_truth"]
        print(f"row {one.number}: {_short(question)}" + (f"  (answer {_short(truth)})" if truth else ""))
        if len(tried) > 1:
            print(f"text      {_short(one.text)}")
        print("\n".join(trial.lines(one)))
    if len(tried) > 1:
        rewards, right = [one.scored.reward for one in tried], sum(one.scored.acc for one in tried)
        print(f"{len(tried)} texts: mean reward {sum(rewards) / len(tried):g}, {right:g} right")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 3]}..."
