"""The rows of data files, one at a time. One that cannot be read is a MalformedRow, and the next is read."""

import csv
import json
import re
import sys
from codecs import BOM_UTF8
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retool_mcore.data.kept import nearest_column
from retool_mcore.data.records import MalformedRow
from retool_mcore.errors import UserError

_BATCH_ROWS = 1024


def parquet_rows(file: Path, columns: Sequence[str] | None, optional: Sequence[str] = ()) -> Iterator[Any]:
    """The rows of a parquet file, with `columns` alone where they are given. Raises UserError for a file that cannot be
    read, and a column that is not there and not `optional`."""
    try:
        with pq.ParquetFile(file) as parquet:
            there = parquet.schema_arrow.names
            if columns is not None:
                named = {c: c if c in there else c.partition(".")[0] for c in columns}
                columns = list(dict.fromkeys(c for name, c in named.items() if c in there or name not in optional))
                if missing := [c for c in columns if c not in there]:
                    hint = nearest_column(missing[0], there)
                    raise UserError(f"{file} has no column {missing[0]!r}: {hint}it has {', '.join(there)}.")
            _check_columns(file, there, columns)
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
                try:
                    yield from batch.to_pylist()
                except (ValueError, OverflowError):  # of a cell's text or date; it comes before the first row
                    for number in range(batch.num_rows):
                        yield _read(lambda part: part.to_pylist()[0], batch.slice(number, 1), file.name, "readable")
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {file} as parquet: {str(error).splitlines()[0]}.") from error


def _check_columns(file: Path, there: Sequence[str], wanted: Sequence[str] | None = None) -> None:
    """Raises UserError where a column that is read occurs twice: readers differ in which one counts."""
    if twice := [c for c in there if list(there).count(c) > 1 and (wanted is None or c in wanted)]:
        raise UserError(f"{file} has the column {twice[0]!r} twice: name its columns apart.")


def text_rows(file: Path) -> Iterator[Any]:
    """The rows of a .csv, .jsonl or .json file. Raises OSError, and UserError for a header that is none."""
    if file.suffix == ".csv":
        yield from _csv_rows(file)
        return
    with file.open("rb") as stream:
        if file.suffix == ".json" and stream.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(b"["):
            # A byte that is no UTF-8 becomes half a surrogate, which `check_text` finds in its row.
            yield from _array_rows(file.read_bytes().decode("utf-8-sig", "surrogateescape"), file.name)
            return
        stream.seek(0)
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _read(lambda text: _JSON.decode(text.decode("utf-8-sig")), line, f"{file.name}:{number}")


def _csv_rows(file: Path) -> Iterator[Any]:
    """Each row as a dict of texts, None where it ends before. A row that is not CSV, or has more cells than the header,
    is a MalformedRow; a quote that nothing closes costs its own line alone."""
    csv.field_size_limit(sys.maxsize)
    # newline="" leaves line ends inside quoted fields alone; utf-8-sig drops a spreadsheet's byte-order mark.
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        lines = _Lines(stream)
        header: list[str] | None = None
        while True:
            lines.taken.clear()
            start = lines.number + 1
            try:
                cells = next(csv.reader(lines, strict=True), None)
            except csv.Error as error:
                row = MalformedRow(f"not CSV: {error}")
                row.where = f"{file.name}:{start}"
                lines.give_back()
                if header is None:
                    raise UserError(f"cannot read the first line of {file}: {error}.") from error
                yield row
                continue
            if cells is None:
                return
            if not cells:
                continue
            if header is None:
                header = cells
                _check_columns(file, header)
            elif any(cells[len(header) :]):
                row = MalformedRow(f"{len(cells)} cells, and the header has {len(header)}: a comma without quotes?")
                row.where = f"{file.name}:{start}"
                yield row
            else:
                yield dict(zip_longest(header, cells[: len(header)]))


class _Lines:
    """The lines of a file; those of a row can be given back, except its first."""

    def __init__(self, stream: Iterable[str]):
        self.stream, self.number = iter(stream), 0
        self.taken: list[str] = []
        self.waiting: deque[str] = deque()

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self.waiting.popleft() if self.waiting else next(self.stream)
        self.taken.append(line)
        self.number += 1
        return line

    def give_back(self) -> None:
        self.waiting.extendleft(reversed(self.taken[1:]))
        self.number -= len(self.taken) - 1


def _array_rows(text: str, name: str) -> Iterator[Any]:
    """The elements of a JSON list; behind one that is not JSON nothing can be read."""
    place, number = text.index("[") + 1, 0
    while True:
        place = _BLANK.match(text, place).end()  # type: ignore[union-attr]
        if text[place : place + 1] == "]":
            return
        number += 1
        try:
            if number > 1:
                if text[place : place + 1] != ",":
                    raise ValueError(f"expected a comma or the end of the list at character {place}")
                place = _BLANK.match(text, place + 1).end()  # type: ignore[union-attr]
            value, place = _JSON.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            row = MalformedRow(f"not JSON, and nothing behind it was read: {error}")
            row.where = f"{name}, element {number}"
            yield row
            return
        yield value


def _distinct(pairs: list[tuple[str, Any]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return fields


_JSON = json.JSONDecoder(object_pairs_hook=_distinct)
_BLANK = re.compile(r"[ \t\r\n]*")


def _read(parse: Callable, text: Any, where: str, kind: str = "JSON") -> Any:
    # Returned and not raised: one broken row must not end the stream.
    try:
        return parse(text)
    except UnicodeDecodeError as error:
        row = MalformedRow(f"not UTF-8: {error}")
    except (ValueError, RecursionError, OverflowError) as error:
        row = MalformedRow(f"not {kind}: {error}")
    row.where = where
    return row
