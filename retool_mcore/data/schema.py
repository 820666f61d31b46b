"""The two parquet schemas that everything downstream reads, the writer for both, and the quick check before a run."""

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from retool_mcore.errors import UserError
from retool_mcore.files import replacing

# Small enough that a check of the first row group is instant, large enough that reading the file is not slower for it.
_ROW_GROUP_ROWS = 1024

_TEXT = pa.string()
_PROMPT = pa.list_(pa.struct({"role": _TEXT, "content": _TEXT}))

RL_SCHEMA = pa.schema(
    {
        "data_source": _TEXT,
        "prompt": _PROMPT,
        "ability": _TEXT,
        "reward_model": pa.struct({"style": _TEXT, "ground_truth": _TEXT}),
        "extra_info": pa.struct({"index": pa.int64(), "split": _TEXT, "question": _TEXT}),
        "agent_name": _TEXT,
    }
)
SFT_SCHEMA = pa.schema(
    {
        "data_source": _TEXT,
        "question": _TEXT,
        "prompt": _PROMPT,
        "segments": pa.list_(pa.struct({"kind": _TEXT, "text": _TEXT})),
        "extra_info": pa.struct({"index": pa.int64(), "split": _TEXT}),
    }
)

# Texts that only some files have: the tools of function-calling rows and what these are known to answer
# (data/records.py::CallProblem), the columns that a row carries for the reward (data/kept.py), all as JSON, and the
# name of what answers its texts (environments/text.py). A reader that does not know them passes over them.
_FURTHER = ("tools", "replies", "row", "environment")


ENVIRONMENT = "environment"  # the column `ability` of rows that are episodes of an environment


def with_texts(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """`schema` with further texts in extra_info."""
    position = schema.get_field_index("extra_info")
    extra = pa.struct([*schema.field("extra_info").type, *(pa.field(name, pa.string()) for name in names)])
    return schema.set(position, pa.field("extra_info", extra))


def joined(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the first schema with the further texts of all in its extra_info."""
    first, *others = schemas
    known = {part.name for part in first.field("extra_info").type}
    further = dict.fromkeys(part.name for schema in others for part in schema.field("extra_info").type)
    return with_texts(first, [name for name in further if name not in known])


def rl_row(source: str, prompt: list[dict], ability: str, ground_truth: str, **extra: Any) -> dict:
    """A row of RL_SCHEMA; `extra`: index, split, question and what else stands in extra_info."""
    truth = {"style": "rule", "ground_truth": ground_truth}
    row = {"data_source": source, "prompt": prompt, "ability": ability, "reward_model": truth}
    return row | {"extra_info": extra, "agent_name": "retool"}


def write_rows(rows: Iterable[dict], schema: pa.Schema, path: Path) -> None:
    """Write rows like write_parquet, with those of the further texts that any of the rows has."""
    rows = list(rows)
    further = [name for name in _FURTHER if any(name in row["extra_info"] for row in rows)]
    write_parquet(rows, with_texts(schema, further) if further else schema, path)


def write_parquet(rows: Iterable[dict], schema: pa.Schema, path: Path) -> None:
    """Write rows in the schema; the file appears whole or not at all (written next to its place, then renamed)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), part, row_group_size=_ROW_GROUP_ROWS)


def rows_of(paths: str | Iterable[str]) -> list[dict]:
    """All rows of one parquet or several, in order."""
    files = [paths] if isinstance(paths, str) else paths  # of a configuration's list, which pyarrow takes for no list
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def check_rl(path: str | Path) -> None:
    """Raise UserError unless `path` is a non-empty RL/eval parquet. Reads the metadata and the first row group only."""
    _check(Path(path), RL_SCHEMA)


def check_sft(path: str | Path) -> None:
    """Raise UserError unless `path` is a non-empty SFT parquet. Reads the metadata and the first row group only.

    Also refuses a code segment in the first row group that its observation does not follow.
    """
    first = _check(Path(path), SFT_SCHEMA)
    for number, segments in enumerate(first["segments"].to_pylist()):
        kinds = [segment["kind"] for segment in segments]
        if unknown := set(kinds) - {"text", "code", "observation"}:
            raise UserError(f"{path}, row {number}: unknown segment kind {sorted(unknown)[0]!r}.")
        if any((now == "observation") != (before == "code") for before, now in pairwise([None, *kinds, None])):
            raise UserError(f"{path}, row {number}: a code segment must be followed by its observation, and only it.")


def _check(path: Path, schema: pa.Schema) -> pa.Table:
    """The first row group, once path, columns, types and row count are right and no value in it is null."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"data file {path} {what}: expected a parquet file as `retool prepare` writes it.")
    try:
        with pq.ParquetFile(path) as file:
            actual = file.schema_arrow
            for wanted in schema:
                if wanted.name not in actual.names:
                    raise UserError(f"{path} has no column {wanted.name!r}: it has {', '.join(actual.names)}.")
                if wrong := _type_mismatch(actual.field(wanted.name).type, wanted.type, wanted.name):
                    raise UserError(f"{path} has a column of the wrong type: {wrong}.")
            if file.metadata.num_rows == 0:
                raise UserError(f"{path} is an empty data set: it has the right columns and no rows.")
            # An empty leading row group is legal parquet.
            groups = (i for i in range(file.num_row_groups) if file.metadata.row_group(i).num_rows)
            first = file.read_row_group(next(groups), columns=schema.names)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"cannot read {path} as parquet: {str(error).splitlines()[0]}.") from error
    for wanted in schema:
        values = first[wanted.name].to_pylist()
        for number, value in enumerate(values):
            if wrong := _hole(value, wanted.type, wanted.name):
                raise UserError(f"{path}, row {number}: {wrong}.")
    return first


def _type_mismatch(actual: pa.DataType, wanted: pa.DataType, name: str) -> str | None:
    """Return what is wrong with a type, or None. Other widths of the same kind pass, and so do further struct
    fields."""
    types = pa.types
    if types.is_struct(wanted) and types.is_struct(actual):
        there = {actual.field(i).name: actual.field(i).type for i in range(actual.num_fields)}
        for part in wanted:
            if part.name not in there:
                return f"{name} has no field {part.name!r}, only {', '.join(there)}"
            if wrong := _type_mismatch(there[part.name], part.type, f"{name}.{part.name}"):
                return wrong
        return None
    if types.is_list(wanted) and (types.is_list(actual) or types.is_large_list(actual)):
        return _type_mismatch(actual.value_type, wanted.value_type, f"{name}[]")
    text = types.is_string(wanted) and types.is_large_string(actual)
    same = actual == wanted or text or (types.is_integer(wanted) and types.is_integer(actual))
    return None if same else f"{name} is {actual}, expected {wanted}"


def _hole(value: Any, wanted: pa.DataType, name: str) -> str | None:
    """Where a value is null, or a list empty, although the schema's readers index into it; None when it is whole."""
    if value is None:
        return f"{name} is null"
    if pa.types.is_list(wanted):
        if not value:
            return f"{name} is an empty list"
        return next((w for item in value if (w := _hole(item, wanted.value_type, f"{name}[]"))), None)
    if pa.types.is_struct(wanted):
        return next((w for part in wanted if (w := _hole(value[part.name], part.type, f"{name}.{part.name}"))), None)
    return None
