"""Are the parquet files there, whole, large enough for a batch, and do their prompts fit the limit and the format?"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pyarrow.parquet as parquet

from retool_mcore.data.curriculum import load_curriculum
from retool_mcore.data.formats import Format
from retool_mcore.data.function_schema import row_tools
from retool_mcore.data.held_back import shared_problem
from retool_mcore.data.lengths import prompt_lengths
from retool_mcore.data.prompts import TEMPLATES, get_template, render
from retool_mcore.data.special_tokens import NAMED
from retool_mcore.errors import UserError
from retool_mcore.rewards.registry import needs_answer
from retool_mcore.rewards.scoring import right_from
from retool_mcore.rewards.verdict import ENVIRONMENT


@dataclass(frozen=True)
class Graded:
    """The answers that recipes with one value of recipe.answer grade, and what to do where recipe and rows differ."""

    text: str
    ability: str | None = None  # of the rows
    no_rows: str = ""  # advice for such a recipe without such rows
    no_recipe: str = ""  # advice for such rows without such a recipe


_ROWS_OF_ENVIRONMENT = "rows of an environment (environments/gym.py::write_rows)"
GRADED = {
    "calls": Graded(
        "function calls",
        ability="function_calling",
        no_rows="take function-calling data, as data=functions or data=xlam",
        no_recipe="take recipe=tool_n1 or recipe=toolrl, or set recipe.answer=calls",
    ),
    "tests": Graded(
        "tests of a repository",
        ability="repository",
        no_rows="recipe=skyrl goes with data=repo_bugs, and with no other",
        no_recipe="data=repo_bugs goes with recipe=skyrl, and with no other",
    ),
    "environment": Graded(
        "episodes of an environment",
        ability="environment",
        no_rows=f"recipe.answer=environment goes with {_ROWS_OF_ENVIRONMENT}, and with no other",
        no_recipe=f"{_ROWS_OF_ENVIRONMENT} go with recipe.answer=environment, and with no other",
    ),
}
ANSWERS = Graded("answers")  # every other value of recipe.answer, rows of every other ability


def listed(paths: str | Iterable[str]) -> list[Path]:
    """One path or several, as a configuration gives them."""
    return [Path(path) for path in ([paths] if isinstance(paths, str) else paths)]


def check_files(key: str, paths: str | Iterable[str], check_schema: Callable[[str], None]) -> list[Path]:
    """The files under config key `key`; every one passes `check_schema` (data.schema.check_rl or check_sft)."""
    files = listed(paths)
    if not files:
        raise UserError(
            f"{key} names no file: give one or more parquet files, or with data=file what they are made of "
            "(data.file.train, data.file.eval, data.file.sft), and run `retool prepare`."
        )
    for file in files:
        check_schema(str(file))
    return files


def count_rows(files: Iterable[Path]) -> int:
    """Count the rows from the parquet footers: reads no data."""
    return sum(parquet.read_metadata(file).num_rows for file in files)


def check_fills_a_batch(key: str, *, rows: int, batch: int) -> None:
    """verl drops the last incomplete batch: fewer rows than a batch train nothing."""
    if rows < batch:
        raise UserError(
            f"{key} holds {rows} rows, fewer than train.batch={batch}: lower train.batch or prepare more rows."
        )


def check_curriculum(section: Mapping, files: Sequence[Path], seed: int, *, batch: int) -> None:
    """The pass rates that data.curriculum names can be read, and what it keeps of the problems fills a batch."""
    kept = load_curriculum(section, [str(file) for file in files], seed).problems
    if kept and len(kept) < batch:
        raise UserError(
            f"data.curriculum leaves {len(kept)} problems to draw from, fewer than train.batch={batch}: widen "
            "data.curriculum.keep, or lower train.batch."
        )


def check_prompt_lengths(
    files: Mapping[str, Sequence[Path]],
    fmt: Format,
    tools: list[dict] | None,
    *,
    max_prompt_tokens: int,
    drop: bool = False,
) -> dict[str, int]:
    """Return how many prompts of each configuration key remain; `drop` leaves out those that are too long, and prints
    their number.

    `fmt` and `tools` (function schemas or None) render the prompt as the rollout does. Raises UserError for prompts
    that are too long, and with `drop` where none remains.
    """
    limit = f"rollout.max_prompt_tokens={max_prompt_tokens}"
    longest, rows, remaining, too_long = (0, 0, Path()), 0, {}, {}
    for key, paths in files.items():
        lengths = {file: prompt_lengths(file, fmt, tools) for file in paths}
        count = sum(map(len, lengths.values()))
        long = sum(length > max_prompt_tokens for of_file in lengths.values() for length in of_file)
        most = max((length, -row, file) for file, of_file in lengths.items() for row, length in enumerate(of_file))
        if long and drop:
            share = f"{long} of {count} prompts are longer than {limit}, up to {most[0]:,} tokens"
            if long == count:
                raise UserError(f"{key}: {share}, and none is left: raise the limit.")
            print(f"{key}: {share}, and are left out (data.drop_long_prompts)", flush=True)
        longest, rows = max(longest, most, key=lambda one: one[0]), rows + count
        remaining[key], too_long[key] = count - long, long
    if (total := sum(too_long.values())) and not drop:
        parts = ", ".join(f"{number} in {key}" for key, number in too_long.items() if number)
        raise UserError(
            f"{total} of {rows} prompts are longer than {limit} ({parts}); the longest has {longest[0]} tokens: row "
            f"{-longest[1]} of {longest[2]}. Raise the limit, or leave them out with data.drop_long_prompts=true."
        )
    return remaining


def tell_special_tokens(key: str, files: Iterable[Path], fmt: Format) -> None:
    """Print how many prompts hold the tokenizer's special tokens, which the rollout reads as text (Format.neutral)."""
    changed = total = 0
    for file in files:
        for batch in parquet.ParquetFile(file).iter_batches(columns=["prompt"]):
            prompts = batch["prompt"].to_pylist()
            changed, total = changed + sum(fmt.neutral(prompt) != prompt for prompt in prompts), total + len(prompts)
    if changed:
        print(f"{key}: {changed} of {total} prompts {NAMED}", flush=True)


def check_sft_prompts(key: str, files: Iterable[Path], fmt: Format) -> None:
    """The chat template takes the SFT prompts: one row is rendered of every order of roles, with its own tools."""
    for file in files:
        first: dict[tuple, tuple[int, dict]] = {}
        for number, row in enumerate(rows_of(file, ("prompt", "extra_info"))):
            tools = row_tools(row.get("extra_info"))
            roles = tuple(message["role"] for message in row["prompt"])
            first.setdefault((roles, bool(tools)), (number, {"messages": row["prompt"], "tools": tools}))
        for number, prompt in first.values():
            try:
                fmt.prompt_ids(**prompt)
            except UserError as error:
                raise UserError(f"data.{key}: row {number} of {file} cannot be rendered: {error}") from error


def rows_of(file: Path, columns: Sequence[str]) -> Iterator[dict]:
    """The rows of a parquet file with those of the columns that it has."""
    opened = parquet.ParquetFile(file)
    there = [name for name in columns if name in opened.schema_arrow.names]
    for batch in opened.iter_batches(columns=there):
        yield from batch.to_pylist()


def check_template(template: str, rollout_format: str, where: str = "data.prompt") -> None:
    """The prompt must teach what the rollout parses; `where` says in which config key or file the template is."""
    get_template(template)
    # The user knows what a text of their own teaches.
    formats = TEMPLATES[template].formats if template in TEMPLATES else (rollout_format,)
    if rollout_format not in formats:
        fitting = [name for name, known in TEMPLATES.items() if rollout_format in known.formats]
        raise UserError(
            f"{where}={template} teaches the format {formats[0]} but rollout.format={rollout_format}: prepare the data "
            f"with data.prompt={' or '.join(fitting)}, or set rollout.format={formats[0]}."
        )


def check_ability(files: Iterable[Path], recipe: Mapping) -> None:
    """A recipe that grades calls, a repository's tests or an environment needs such rows, every other recipe others.

    `recipe` is the configuration's section. Only the first row of each file is read.
    """
    graded = GRADED.get(recipe["answer"], ANSWERS)
    for file in files:
        batch = next(parquet.ParquetFile(file).iter_batches(batch_size=1, columns=["ability"]))
        ability = batch["ability"][0].as_py()
        rows = next((kind for kind in GRADED.values() if kind.ability == ability), ANSWERS)
        if rows != graded:
            advice = rows.no_recipe if graded == ANSWERS else graded.no_rows
            raise UserError(
                f"recipe={recipe['name']} grades {graded.text} (recipe.answer={recipe['answer']}), and the rows of "
                f"{file} are {rows.text} (ability {ability!r}): {advice}."
            )


def check_answers(files: Iterable[Path], recipe: Mapping) -> None:
    """Rows without an answer go with a reward that needs none, and with a reward from which on one is right.

    `recipe` is the configuration's section; in an environment no row has an answer. Raises UserError.
    """
    name = recipe["reward"]["name"]
    if recipe["answer"] == ENVIRONMENT:
        return
    needed = needs_answer(name)
    if not needed and right_from(recipe) is not None:
        return
    for file in files:
        truths = [row["reward_model"]["ground_truth"] for row in rows_of(file, ["reward_model"])]
        if not (count := sum(not truth.strip() for truth in truths)):
            continue
        without = f"{count} of {len(truths)} rows of {file} have no answer"
        if needed:
            raise UserError(
                f"{without}, which recipe.reward.name={name} compares with: take a reward that needs none, as "
                "docs/rewards.md has it, or leave these rows out."
            )
        raise UserError(
            f"{without}, so nothing says which trajectories are right: set recipe.right_from to the reward from which "
            "on one is."
        )


def check_call_style(template: str, recipe: Mapping) -> None:
    """Tool-N1's reward reads a JSON list of calls, ToolRL's one call a line: the prompt must teach the recipe's own."""
    styles = ("tool_n1", "toolrl")
    reward = recipe["reward"]["name"]
    if template in styles and reward in styles and template != reward:
        raise UserError(
            f"data.prompt={template} teaches another way to write calls than recipe.reward.name={reward} reads: "
            f"prepare the data with data.prompt={reward}."
        )


def check_prepared_template(files: Iterable[Path], rollout_format: str, asked: str | None) -> None:
    """Check like check_template, for what the files really hold: data.prompt may have changed since they were prepared.

    asked: data.prompt, None where the files follow it. One that is a text of the user's own must be the files' prompt,
    since `retool prepare` alone writes prompts. Only the first row is read, and of the files' prompts only our own
    templates are recognised: another prompt passes.
    """
    for file in files:
        batch = next(parquet.ParquetFile(file).iter_batches(batch_size=1))
        row = batch.to_pylist()[0]
        question = row["question"] if "question" in row else row["extra_info"]["question"]
        prompt = [{"role": message["role"], "content": message["content"]} for message in row["prompt"]]
        if asked is not None and asked not in TEMPLATES and len(prompt) == 1 and prompt != render(asked, question):
            written = f"{prompt[0]['content']!r:.200}"
            raise UserError(
                f"data.prompt={asked!r} is not the prompt that {file} was prepared with ({written}): "
                "prepare the data again with it, or leave data.prompt as it was."
            )
        for template in TEMPLATES:
            if prompt == render(template, question):
                check_template(template, rollout_format, where=f"the prompt template of {file}")
                break


def check_validation(train: Mapping, files: Mapping[str, Sequence[Path]], tests: str | Sequence[str]) -> None:
    """Print what validation costs, once it is by problems that nothing else uses. Raises UserError.

    files: of the keys train_files and held_back_files; tests: data.validation_files, which RL does not need.
    """
    reported = count_rows(files.get("validation_files", ()))
    if not (line := told_cost(train, problems=count_rows(files["held_back_files"]), reported=reported)):
        return
    there = [path for path in listed(tests) if path.is_file()]
    for key, paths in (("train_files", files["train_files"]), ("validation_files", there)):
        if (question := shared_problem(paths, files["held_back_files"])) is not None:
            raise UserError(
                f"data.held_back_files and data.{key} share the problem {question[:80]!r}: a checkpoint is chosen by "
                "problems that are neither trained on nor reported; run `retool prepare` again, or give other files."
            )
    print(line, flush=True)


def told_cost(train: Mapping, *, problems: int, reported: int = 0) -> str:
    """Return a message about the validation of the section `train` on so many problems; "" where there is none.

    problems: held back; reported: of the evaluation set, 0 where it is not validated on. The last step's validation
    comes on top. Raises UserError when it costs more than train.eval_share, or leaves out checkpoints.
    """
    every, before = train["eval_every"], train.get("eval_before", False)
    if every < 1 and not before:
        return ""
    step, generated = train["batch"] * train["n"], problems * train["eval_samples"]
    message = f"validation: {problems} problems x {train['eval_samples']} samples"
    if reported:
        generated += reported * train["evaluation"]["samples"]
        message += f" and {reported} of the evaluation set x {train['evaluation']['samples']}"
    # One before the first step counts among those of the whole run.
    trained = step * (train["steps"] if every < 1 else min(every, train["steps"]))
    when = "before the first step" if every < 1 else f"every {every} steps" + " and before the first" * before
    message += f" {when}: {generated:,} trajectories next to {trained:,} trained on, {generated / trained:.1%}"
    if generated > train["eval_share"] * trained:
        cheaper = "eval_before=false" if every < 1 else f"eval_every={ceil(generated / step / train['eval_share'])}"
        raise UserError(
            f"{message}, more than train.eval_share={train['eval_share']:g}: raise it, lower train.eval_samples, or "
            f"set train.{cheaper}."
        )
    check_cadence(train)
    return message


def check_cadence(train: Mapping) -> None:
    """Every step that is saved is validated, where a validation chooses the best. Raises UserError."""
    every, save = train["eval_every"], train["save_every"]
    if every > 0 and str(train["keep_best"]).startswith("val/") and save > 0 and save % every:
        raise UserError(
            f"train.save_every={save} is no multiple of train.eval_every={every}, and what is not validated is never "
            f"the best: set train.eval_every={save}, or train.keep_best=null."
        )
