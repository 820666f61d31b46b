"""The public data sets by name: where each lives, how its rows are read, and what it is for.

`load` reads a local file, a folder of files or the hub, always as a stream: DAPO's 1.79 M rows never sit in memory.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Literal

from retool_mcore.data.bfcl import (
    ANSWERS,
    PACKAGE,
    bfcl_problem,
    chosen_files,
    is_leaderboard,
    package_folder,
    with_answers,
)
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.function_calls import loosened, toolace_problems, xlam_problem
from retool_mcore.data.kept import Kept
from retool_mcore.data.readers import parquet_rows, text_rows
from retool_mcore.data.records import (
    CallProblem,
    Malformed,
    MalformedRow,
    Problem,
    Trace,
    at,
    check_text,
    field,
    printable,
    source_name,
    text_field,
)
from retool_mcore.data.traces import text_trace, tool_call_trace
from retool_mcore.errors import UserError

_SHOWN = 100  # characters of a malformed row
# In a folder only the first kind found is read: hub snapshots keep metadata as .json next to the data.
_SUFFIXES = (".parquet", ".jsonl", ".json", ".csv")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_DAPO_PREFIX = re.compile(
    r"\ASolve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: \$Answer \(without quotes\) where \$Answer is the answer to the problem\.\s*"
)
_DAPO_SUFFIX = re.compile(r'\s*Remember to put your answer on its own line after "Answer:"\.\s*\Z')


def prompt_problem(row: dict, data_source: str, index: int) -> Problem:
    """A row in verl's schema (DAPO-Math-17k, AIME-2024): prompt [{role, content}], reward_model {ground_truth}.

    Their prompts ask for a last line `Answer: ...`; that wrapper is taken off, since our template asks for a box.
    """
    prompt = field(row, "prompt", "row")
    if not isinstance(prompt, list) or len(prompt) != 1:
        shape = f"{len(prompt)} messages" if isinstance(prompt, list) else type(prompt).__name__
        raise MalformedRow(f"prompt is {shape}, expected a list of one message")
    role = field(prompt[0], "role", "prompt message")
    if role != "user":
        raise MalformedRow(f"the prompt's role is {role!r}, expected 'user'")
    text = text_field(field(prompt[0], "content", "prompt message"), "prompt content")
    question = _DAPO_SUFFIX.sub("", _DAPO_PREFIX.sub("", text))
    answer = field(field(row, "reward_model", "row"), "ground_truth", "reward_model")
    return Problem(data_source, _question(question), _answer(answer, "ground_truth"), index)


def flat_problem(row: dict, data_source: str, index: int, *, question_key: str, answer_key: str) -> Problem:
    """A row with the bare question and answer in two columns (Maxwell-Jia/AIME_2024, yentinglin/aime_2025)."""
    question = text_field(field(row, question_key, "row"), question_key)
    return Problem(data_source, _question(question), _answer(field(row, answer_key, "row"), answer_key), index)


def own_problem(
    row: dict, data_source: str, index: int, *, question: str, answer: str | None, needed: bool = True
) -> Problem:
    r"""A row of the user's own; question and answer are dotted paths.

    An answer that is a whole solution counts by its last \boxed{}, or by what follows `####`, as GSM8K has it. Where no
    answer is `needed`, one that is missing, null or empty is "", as it is without a path.
    """
    text = text_field(at(row, question), question)
    if answer is None or (not needed and _is_blank(row, answer)):
        return Problem(data_source, _question(text), "", index)
    return Problem(data_source, _question(text), _own_answer(at(row, answer), answer), index)


def _is_blank(row: dict, path: str) -> bool:
    try:
        value = at(row, path)
    except MalformedRow:
        return True
    return value is None or (isinstance(value, str) and not value.strip()) or value != value  # a null among numbers


def _own_answer(value: Any, answer: str) -> str:
    if isinstance(value, float) and math.isfinite(value):
        value = f"{Decimal(repr(value)):f}".removesuffix(".0")
    text = _answer(value, answer)
    final = last_boxed(text) or text.rpartition("####")[2]
    return _answer(final, answer)


@dataclass(frozen=True)
class Source:
    """A data set. `columns` are those the parser reads, None: any; `split` is what its rows are for ("test" is never
    trained on).

    parse(row, data_source, index) returns a record, or several, or raises MalformedRow. `complete(rows, file)` adds to
    a text file's rows what another file holds; it is given the rows of one file at a time. `subset` and `hub_split`
    are the hub's. `named_by` is the column that holds a row's data source, in place of `data_source`; `keep` are
    further columns that a problem carries (`Problem.extra`); `optional` those of `columns` that a file may lack. With
    `loose` the texts in right calls compare as the leaderboard compares them (rewards/call_truth.py).
    """

    data_source: str
    hub_name: str
    purpose: Literal["rl", "sft"]
    split: Literal["train", "test"]
    columns: tuple[str, ...] | None
    parse: Callable[[dict, str, int], Problem | Trace | Sequence[Problem | Trace]]
    complete: Callable[[Iterator[Any], Path], Iterator[Any]] | None = None
    subset: str | None = None
    hub_split: str = "train"
    named_by: str | None = None
    keep: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    loose: bool = False

    @property
    def wanted(self) -> tuple[str, ...] | None:
        """The columns that are read of a parquet file, None: all."""
        if self.columns is None:
            return None
        return tuple(dict.fromkeys([*self.columns, *filter(None, [self.named_by]), *self.keep]))


# The public data sets by the name that a configuration has for them: data source, address on the hub, purpose, split,
# columns and the function that reads a row.
SOURCES = {
    "retool_sft": Source("retool_sft", "JoeYing/ReTool-SFT", "sft", "train", ("messages",), text_trace),
    "retool_sft_multi_turn": Source(
        "retool_sft", "swordfaith/ReTool-SFT-multi-turn", "sft", "train", ("messages",), tool_call_trace
    ),
    "dapo_math_17k": Source(
        "dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k", "rl", "train", ("prompt", "reward_model"), prompt_problem
    ),
    "aime_2024": Source(
        "aime_2024", "BytedTsinghua-SIA/AIME-2024", "rl", "test", ("prompt", "reward_model"), prompt_problem
    ),
    "aime_2024_maxwell": Source(
        "aime_2024",
        "Maxwell-Jia/AIME_2024",
        "rl",
        "test",
        ("Problem", "Answer"),
        partial(flat_problem, question_key="Problem", answer_key="Answer"),
    ),
    "aime_2025": Source(
        "aime_2025",
        "yentinglin/aime_2025",
        "rl",
        "test",
        ("problem", "answer"),
        partial(flat_problem, question_key="problem", answer_key="answer"),
    ),
    "xlam": Source(
        "xlam", "Salesforce/xlam-function-calling-60k", "rl", "train", ("query", "tools", "answers"), xlam_problem
    ),
    "toolace": Source("toolace", "Team-ACE/ToolACE", "rl", "train", ("system", "conversations"), toolace_problems),
    "bfcl": Source(
        "bfcl",
        "gorilla-llm/Berkeley-Function-Calling-Leaderboard",
        "rl",
        "test",
        None,
        bfcl_problem,
        complete=with_answers,
    ),
}


def get_source(name: str) -> Source:
    """The source of that name; raises UserError listing the names when there is none."""
    if name not in SOURCES:
        raise UserError(f"unknown data set {name!r}: the data sets are {', '.join(SOURCES)}.")
    return SOURCES[name]


def load(source: Source, location: str | Path | None = None) -> Iterator[Problem | Trace | Malformed]:
    """Every row of the source as a record, in order; the row number counts from 0 over all files.

    location: a .parquet, .json, .jsonl or .csv file, a folder of them, or a hub name; None is the source's hub name.
    Raises UserError for a location that cannot be read, a parquet file that lacks a column, and a column to keep that
    no row has.
    """
    kept = Kept(source.keep)
    place, of_hub = location or source.hub_name, (source.subset, source.hub_split)
    rows = raw_rows(place, source.wanted, source.complete, *of_hub, source.optional)
    for index, row in enumerate(rows):
        if isinstance(row, MalformedRow):
            yield Malformed(index, printable(str(row)))
            continue
        try:
            name = source.data_source if source.named_by is None else source_name(row, source.named_by)
            made: Any = source.parse(row, name, index)
            records = made if isinstance(made, list) else [made]
            if source.keep:
                extra = kept.of(row)
                records = [replace(record, extra={**record.extra, **extra}) for record in records]
            if source.loose:
                records = [loosened(record) if isinstance(record, CallProblem) else record for record in records]
            for record in records:
                check_text(record)
            yield from records
        except MalformedRow as reason:
            shown = json.dumps(row, default=str, ensure_ascii=False)
            yield Malformed(index, printable(str(reason)), printable(shown[:_SHOWN]))
    kept.check(source.data_source)


def check_location(source: Source, location: str | Path | None = None) -> None:
    """Raise UserError for a location that `load` could not read; reads no row and downloads no data."""
    name = str(location or source.hub_name)
    if (files := files_of(name)) is not None:
        for file in files:
            if file.suffix == ".parquet":
                next(parquet_rows(file, source.wanted, source.optional), None)
        return
    import httpx
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name, timeout=30)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise _not_on_hub(name, error) from error


def raw_rows(
    location: str | Path,
    columns: Sequence[str] | None = None,
    complete: Callable[[Iterator[Any], Path], Iterator[Any]] | None = None,
    subset: str | None = None,
    split: str = "train",
    optional: Sequence[str] = (),
) -> Iterator[Any]:
    """Every row of a location as it is there, or the MalformedRow that says why it is none.

    columns: those wanted of a parquet file, None: all; optional: those of them that it may lack. complete: see
    `Source`. subset, split: the hub's, streamed.
    """
    if (files := files_of(str(location))) is None:
        yield from hub_rows(str(location), subset, split)
        return
    for file in files:
        try:
            if file.suffix == ".parquet":
                yield from parquet_rows(file, columns, optional)
            else:
                yield from complete(text_rows(file), file) if complete else text_rows(file)
        except OSError as error:
            raise UserError(f"cannot read {file}: {error}.") from error


def hub_rows(name: str, subset: str | None = None, split: str = "train") -> Iterator[dict]:
    """Rows of a split of a data set on the hub (or a local copy of its repository), streamed."""
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        yield from load_dataset(name, subset, split=split, streaming=True)
    except (OSError, ValueError, DatasetsError) as error:
        raise _not_on_hub(name, error) from error


def _not_on_hub(name: str, error: Exception) -> UserError:
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return UserError(
        f"cannot load {name!r} from the hub, and no local file or folder has that name ({first_line}): download it on "
        "a machine that can, and give the path of its file or folder."
    )


def files_of(location: str) -> list[Path] | None:
    """The files of a location whose rows are read; None for a hub name. Raises UserError when there are none.

    Of the Berkeley leaderboard's files those are left out whose rows are not of one turn (`left_out`).
    """
    files = _all_files(location)
    return None if files is None else chosen_files(files)[0]


def left_out(location: str) -> list[str]:
    """Return a line for each kind of files of a location that are not read, with its count and the reason."""
    files = _all_files(location)
    return [] if files is None else chosen_files(files)[1]


def of_leaderboard(location: str) -> bool:
    """Return whether a location holds the Berkeley leaderboard's own files; False where there is none to read."""
    try:
        return location == PACKAGE or is_leaderboard(_all_files(location) or [])
    except UserError:
        return False


def _all_files(location: str) -> list[Path] | None:
    path = package_folder(location) or Path(location).expanduser()
    if not path.exists() and _HUB_NAME.fullmatch(location) and path.suffix not in _SUFFIXES:
        return None
    if path.is_file() and path.suffix in _SUFFIXES:
        return [path]
    if path.is_file():
        raise UserError(f"cannot read {path}: expected a file that ends in {', '.join(_SUFFIXES)}.")
    if not path.is_dir():
        wanted = "Give a data file, a folder of them, or a hub name owner/name"
        raise UserError(f"no such file or folder: {location}. {wanted}.")
    below = [p.relative_to(path) for p in sorted(path.rglob("*")) if p.is_file() and p.parent.name != ANSWERS]
    visible = [path / name for name in below if not any(part.startswith(".") for part in name.parts)]
    for suffix in _SUFFIXES:
        if files := [p for p in visible if p.suffix == suffix]:
            return files
    raise UserError(f"the folder {path} holds no data: expected files that end in {', '.join(_SUFFIXES)}.")


def _question(text: str) -> str:
    if not text.strip():
        raise MalformedRow("empty question")
    return text.strip()


def _answer(value: Any, name: str) -> str:
    """Answers are text or whole numbers; a float such as 73.0 is what a null in an integer column makes of one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    answer = text_field(value, name).strip()
    if not answer:
        raise MalformedRow(f"{name} is empty")
    return answer
