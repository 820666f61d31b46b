"""Trajectories on disk, one parquet file a step: a run can be read, replayed and scored again without engines."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow
import pyarrow.compute
from pyarrow import parquet

from retool_mcore.errors import UserError
from retool_mcore.files import replacing
from retool_mcore.metrics import schema

_STEP_FILE = re.compile(r"step_([0-9]+)\.parquet")
_GROUP_TOKENS = 1 << 18  # a row group: small enough to read one trajectory, large enough to list many files quickly
_FLOATS = [name for name, dtype in schema.ARRAYS.items() if dtype.kind == "f"]
_WORDS = ["data_source", "finish", "statuses.list.element", "spans.list.element.kind", "calls.list.element.status"]


def write_step(folder: Path | str, step: int, records: Sequence[Mapping], keep_bytes: int | None = None) -> Path:
    """Write `folder/step_000012.parquet`, one record a row, and return its path; the file is there whole or not at all.

    records: `Trajectory.to_record()` or `rollout.packed.unpack`, with the columns of metrics/schema.py; what a record
    has beyond them must be JSON. A step that is run again after a resume replaces its file. keep_bytes: afterwards the
    files of the lowest steps are removed until all files together are no larger; the one just written always stays. One
    writer a folder.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:06d}.parquet"
    table = schema.to_table(records)
    tokens = pyarrow.compute.sum(table.column("tokens")).as_py() or 1
    with replacing(path) as part:
        parquet.write_table(
            table,
            part,
            row_group_size=max(16, _GROUP_TOKENS * len(table) // tokens),
            compression="zstd",
            # The bytes of a log-probability compress by position: the exponents are alike, the mantissas are not.
            use_dictionary=_WORDS,
            column_encoding={f"{name}.list.element": "BYTE_STREAM_SPLIT" for name in _FLOATS},
        )
    if keep_bytes is not None:
        _remove_oldest(folder, keep_bytes, path)
    return path


def step_files(folder: Path | str) -> dict[int, Path]:
    """The step files of `folder` by step, ascending; empty when there are none."""
    matches = ((_STEP_FILE.fullmatch(path.name), path) for path in Path(folder).glob("step_*.parquet"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def read_step(path: Path | str, rows: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> list[dict]:
    """The records of one step file, in order; of an evaluation's trajectories.jsonl as well.

    Token columns (schema.ARRAYS) are numpy arrays, also those that were written as lists. rows: only these, read
    without the others' tokens; columns: only these keys. Raises UserError for a file that is missing or broken.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"There is no trajectory file {path}.")
    if path.suffix == ".jsonl":
        table = schema.to_table(_read_lines(path))
        table = table if rows is None else table.take(list(rows))
        return schema.from_table(table if columns is None else table.select(list(columns)))
    with _whole(path), parquet.ParquetFile(path) as file:
        if rows is None:
            return schema.from_table(file.read(columns=columns))
        by_row, first = {}, 0
        for number in range(file.num_row_groups):
            end = first + file.metadata.row_group(number).num_rows
            wanted = sorted({row for row in rows if first <= row < end})
            if wanted:
                group = file.read_row_group(number, columns=columns).take([row - first for row in wanted])
                by_row |= dict(zip(wanted, schema.from_table(group), strict=True))
            first = end
    if missing := [row for row in rows if row not in by_row]:
        raise UserError(f"{path} holds {first} trajectories, there is no row {missing[0]} (rows count from 0).")
    return [by_row[row] for row in rows]


def read_columns(path: Path, columns: Sequence[str]) -> pyarrow.Table:
    """Columns of one step file, or parts of them as calls.list.element.status. Raises UserError when it is broken."""
    with _whole(path), parquet.ParquetFile(path) as file:
        # Few small columns: threads would wait for each other longer than they read, above all on a busy machine.
        return file.read(columns=list(columns), use_threads=False)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Raises UserError for what pyarrow cannot read of the step file `path`."""
    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        message = f"{path} is not a whole trajectory file ({' '.join(str(error).split())}). Remove it."
        raise UserError(message) from None


def _read_lines(path: Path) -> list[dict]:
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            records.append(dict(json.loads(line)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}, line {number}: not a JSON object ({error}). Remove or mend the file.") from None
    return records


def _remove_oldest(folder: Path, keep_bytes: int, newest: Path) -> None:
    files = list(step_files(folder).values())
    total = sum(path.stat().st_size for path in files)
    for path in files:
        if total <= keep_bytes:
            return
        if path != newest:
            total -= path.stat().st_size
            path.unlink()
