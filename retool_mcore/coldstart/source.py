"""The first stage: rows of any file or hub data set as problem, reasoning and answer.

Every row is accounted for, also one that is no UTF-8, no JSON, too large, or lacks a column.
"""

from collections.abc import Iterator
from typing import Any

from retool_mcore.coldstart.config import Source
from retool_mcore.coldstart.rows import Drop, Outcome, Row, content_key
from retool_mcore.data import records
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.sources import files_of, raw_rows


def identity(location: str) -> list:
    """Return values that change when the data do: names, sizes and times of the files, or the hub's name."""
    files = files_of(location)
    if files is None:
        return [location]
    return [[str(file), status.st_size, status.st_mtime_ns] for file in files for status in [file.stat()]]


def read(source: Source) -> Iterator[Outcome]:
    """An outcome for every row of the source, in its order. Raises UserError for a source that is not there."""
    for index, raw in enumerate(raw_rows(source.path, subset=source.subset)):
        if index == source.max_rows:
            return
        key = content_key(index)
        try:
            row = _row(raw, source, index)
            yield Outcome(row.key, index, row)
        except Drop as drop:
            yield Outcome(key, index, None, drop.reason, drop.detail)


def at(row: Any, path: str) -> Any:
    """The value at a dotted path. Raises Drop when it leads nowhere, and for what is no row."""
    if isinstance(row, records.MalformedRow):
        reason, _, detail = str(row).partition(": ")
        raise Drop(reason, f"{row.where}: {detail}")
    if not isinstance(row, dict):
        raise Drop("not JSON", "no object")
    try:
        return records.at(row, path)
    except records.MalformedRow as error:
        raise Drop("no such column", str(error)) from None


def _row(raw: Any, source: Source, index: int) -> Row:
    for path, wanted in (source.where or {}).items():
        if (value := at(raw, path)) != wanted:
            raise Drop("not in source.where", f"{path} is {value!r}, not {wanted!r}"[:200])
    columns = source.columns
    problem = text(at(raw, columns.problem), "problem")
    paths = [columns.reasoning] if isinstance(columns.reasoning, str) else columns.reasoning or ()
    reasoning = "\n\n".join(text(at(raw, path), "reasoning") for path in paths)
    size = len(problem) + len(reasoning)
    if size > source.max_row_bytes:
        raise Drop("too large", f"{size} characters, more than source.max_row_bytes={source.max_row_bytes}")
    answer = _answer(at(raw, columns.answer)) if columns.answer else last_boxed(reasoning) or ""
    difficulty = at(raw, columns.difficulty) if columns.difficulty else None
    try:
        difficulty = None if difficulty is None else float(difficulty)
    except (TypeError, ValueError):
        raise Drop("difficulty is no number", repr(difficulty)[:80]) from None
    return Row(content_key(index, problem, reasoning, answer), index, problem, reasoning, answer, difficulty)


def text(value: Any, name: str) -> str:
    """`value`, the column `name`. Raises Drop unless it is text that has a UTF-8 form."""
    if not isinstance(value, str) or not value.strip():
        raise Drop(f"{name} is empty or no text", type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Drop("not UTF-8", f"{name}: {error}") from None
    return value


def _answer(value: Any) -> str:
    if isinstance(value, bool):
        raise Drop("answer is empty or no text", "bool")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        return str(value)
    return last_boxed(text(value, "answer")) or value
