"""The first stage: rows of any parquet, JSONL or hub data set as problem, reasoning and answer.

Every row is accounted for, also one that is no UTF-8, no JSON, too large, or lacks a column.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retool_mcore.coldstart.config import Columns, Source
from retool_mcore.coldstart.rows import Drop, Outcome, Row, content_key
from retool_mcore.data import records
from retool_mcore.data.boxed import last_boxed
from retool_mcore.data.sources import hub_rows
from retool_mcore.errors import UserError

SUFFIXES = (".parquet", ".jsonl")
_BATCH_ROWS = 256


def identity(location: str) -> list:
    """What changes when the data do: names, sizes and times of the files, or the hub's name."""
    path = Path(location).expanduser()
    if not path.exists():
        return [location]
    return [[str(file), *(lambda s: (s.st_size, s.st_mtime_ns))(os.stat(file))] for file in data_files(path)]


def data_files(path: Path) -> list[Path]:
    """`path` itself, or the parquet or JSONL files below it. Raises UserError when there are none."""
    files = [path] if path.is_file() else sorted(p for s in SUFFIXES for p in path.rglob(f"*{s}"))
    if not files or any(file.suffix not in SUFFIXES for file in files):
        raise UserError(f"{path} holds no data that can be read: expected files that end in {', '.join(SUFFIXES)}.")
    return files


def read(source: Source) -> Iterator[Outcome]:
    """An outcome for every row of the source, in its order. Raises UserError for a source that is not there."""
    for index, raw in enumerate(raw_rows(source.path, source.subset)):
        if index == source.max_rows:
            return
        key = content_key(index)
        try:
            row = _row(raw, source, index)
            yield Outcome(row.key, index, row)
        except Drop as drop:
            yield Outcome(key, index, None, drop.reason, drop.detail)


def raw_rows(location: str, subset: str | None = None) -> Iterator[dict | Drop]:
    """Every row as a dict, or why it is none."""
    path = Path(location).expanduser()
    if not path.exists():
        if location.count("/") != 1 or path.suffix in SUFFIXES:
            raise UserError(
                f"no such file or folder: {location}. Give a data file, a folder, or a hub name owner/name."
            )
        yield from hub_rows(location, subset)
        return
    for file in data_files(path):
        yield from _parquet(file) if file.suffix == ".parquet" else _lines(file)


def at(row: Any, path: str) -> Any:
    """The value at a dotted path. Raises Drop when it leads nowhere."""
    try:
        return records.at(row, path)
    except records.MalformedRow as error:
        raise Drop("no such column", str(error)) from None


def _row(raw: dict | Drop, source: Source, index: int) -> Row:
    if isinstance(raw, Drop):
        raise raw
    for path, wanted in (source.where or {}).items():
        if (found := at(raw, path)) != wanted:
            raise Drop("not in source.where", f"{path} is {found!r}, not {wanted!r}"[:200])
    columns = source.columns
    problem = text(at(raw, columns.problem), "problem")
    reasoning = _reasoning(raw, columns)
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


def _reasoning(raw: dict, columns: Columns) -> str:
    if columns.reasoning is None:
        return ""
    paths = [columns.reasoning] if isinstance(columns.reasoning, str) else columns.reasoning
    return "\n\n".join(text(at(raw, path), "reasoning") for path in paths)


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


def _lines(file: Path) -> Iterator[dict | Drop]:
    with file.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                yield Drop("not UTF-8", f"{file.name}:{number}: {error}")
            except (ValueError, RecursionError) as error:
                yield Drop("not JSON", f"{file.name}:{number}: {error}")
            else:
                yield row if isinstance(row, dict) else Drop("not JSON", f"{file.name}:{number}: no object")


def _parquet(file: Path) -> Iterator[dict | Drop]:
    try:
        with pq.ParquetFile(file) as parquet:
            for batch in parquet.iter_batches(_BATCH_ROWS):
                yield from _batch(batch, file.name)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {file} as parquet: {str(error).splitlines()[0]}.") from error


def _batch(batch: pa.RecordBatch, name: str) -> Iterator[dict | Drop]:
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError:
        for number in range(batch.num_rows):
            try:
                yield batch.slice(number, 1).to_pylist()[0]
            except UnicodeDecodeError as error:
                yield Drop("not UTF-8", f"{name}: {error}")
