"""A reward on texts of one's own, without an engine: what `retool reward try` judges."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf

from retool_mcore.config import compose
from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.errors import UserError
from retool_mcore.recipes.check import check_arguments
from retool_mcore.recipes.sample_filters import drop_reason
from retool_mcore.rewards.sample import of_row, sample_of_text
from retool_mcore.rewards.scoring import Scored, right_from, score_or_crash


class Tried(NamedTuple):
    """A text with what it came to. drop: which filter would leave it out of the loss, "" for none."""

    text: str
    row: dict
    number: int
    scored: Scored
    answer: Scored
    drop: str


class Trial:
    """Rows and a recipe to try texts with.

    place: a run's folder, whose recipe and training problems are taken, or a parquet of `retool prepare`. overrides: of
    `retool rl`, as recipe.reward.name=mine.brief. Raises UserError for what cannot be read or does not fit.
    """

    def __init__(self, place: Path, overrides: Sequence[str] = ()):
        recipe, files = _of_run(place, overrides) if place.is_dir() else (compose("rl", overrides).recipe, [str(place)])
        check_arguments("reward", recipe.reward, given=1)
        self.recipe: dict[str, Any] = OmegaConf.to_container(recipe, resolve=True)  # type: ignore[assignment]
        for file in files:
            check_rl(file)
        self.rows = rows_of(files)

    def judge(self, text: str, number: int = 0) -> Tried:
        """Judge a response `text` to row `number`. Raises UserError for a row that does not exist."""
        if not 0 <= number < len(self.rows):
            raise UserError(f"row {number}: the rows are numbered from 0 to {len(self.rows) - 1}.")
        row = self.rows[number]
        truth = str(row["reward_model"]["ground_truth"])
        sample = sample_of_text(text, ground_truth=truth, **of_row(row["data_source"], row["extra_info"]))
        scored = score_or_crash(sample, self.recipe)
        compared = self.recipe | {"reward": {"name": "retool", "args": {}}, "right_from": None}
        answer = score_or_crash(sample, compared) if truth and self.compares else scored
        filters = self.recipe["filters"]
        drop = drop_reason(scored.sample, filters["samples"], {"repetition": filters["repetition"]})
        return Tried(text, row, number, scored, answer, drop)

    @property
    def compares(self) -> bool:
        """Whether an answer is compared with the row's."""
        return self.recipe["answer"] not in ("environment", "tests")

    def lines(self, tried: Tried) -> list[str]:
        """Return the printed lines about one text."""
        scored, answer, recipe = tried.scored, tried.answer, self.recipe
        arguments = ", ".join(f"{name}={value}" for name, value in recipe["reward"]["args"].items())
        lines = [f"reward    {scored.reward:g}  ({recipe['reward']['name']}{f': {arguments}' if arguments else ''})"]
        if scored.error:
            lines.append(f"          the reward raised {scored.error}: it is worth what an empty text is, at most 0")
        if not self.compares or not tried.row["reward_model"]["ground_truth"]:
            lines.append("verdict   none: there is no answer to compare with")
        elif not answer.pred:
            lines.append(f"verdict   wrong: no answer was found (recipe.answer={recipe['answer']})")
        else:
            by = f", decided by {answer.graded_by}" if answer.graded_by else ""
            lines.append(f"verdict   {'right' if answer.acc else 'wrong'}: the answer read is {answer.pred!r}{by}")
        least = right_from(recipe)
        rule = "the verdict" if least is None else f"a reward of {least:g} or more"
        lines.append(f"accuracy  {scored.acc:g}  (by {rule})")
        if tried.drop:
            lines.append(f"filter    {tried.drop}: such a trajectory is left out of the loss")
        return lines


def texts(file: Path) -> list[tuple[str, int | None]]:
    """(text, its row or None) of a file: of a .jsonl each line, a text or an object with `text` and perhaps `row`; of
    any other file the whole. Raises UserError."""
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}.") from error
    if file.suffix != ".jsonl":
        return [(content, None)]
    pairs = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}:{number} is not JSON: {error}.") from error
        one = value if isinstance(value, Mapping) else {"text": value}
        text, row = one.get("text"), one.get("row")
        if not isinstance(text, str) or not (row is None or (isinstance(row, int) and not isinstance(row, bool))):
            raise UserError(f"{file}:{number}: expected a text, or an object with a text `text` and a number `row`.")
        pairs.append((text, row))
    if not pairs:
        raise UserError(f"{file} holds no text.")
    return pairs


def _of_run(run: Path, overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """(the recipe, the training files) of a run that has begun RL, or was only prepared."""
    path = next((file for stage in ("rl", "prepare") if (file := run / stage / "config.yaml").is_file()), None)
    if path is None:
        raise UserError(f"{run} is no run with data: give a run's folder, or a parquet of `retool prepare`.")
    saved = OmegaConf.load(path)
    files = saved.data.train_files
    files = [files] if isinstance(files, str) else list(files)
    composed = compose("rl", overrides).recipe
    if path.parent.name == "prepare" or any(word.startswith("recipe=") for word in overrides):
        return composed, files
    own = [word for word in overrides if word.startswith("recipe.")]
    if any(word.startswith("recipe.reward.name=") for word in own):
        saved.recipe.reward.args = {}  # of the other reward
    return OmegaConf.merge({"recipe": saved.recipe}, OmegaConf.from_dotlist(own)).recipe, files
