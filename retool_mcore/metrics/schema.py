"""What a trajectory file holds: one row a trajectory, and how a record becomes a row and comes back."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow

from retool_mcore.tables import arrow_type, yaml_beside

_TABLES = yaml_beside(__file__)
SCALARS, DERIVED = ({name: arrow_type(told) for name, told in _TABLES[kind].items()} for kind in ("scalars", "derived"))
ARRAYS = {name: np.dtype(told) for name, told in _TABLES["arrays"].items()}
STRUCTS = {name: arrow_type([told]) for name, told in _TABLES["structs"].items()}
_EXTRA = "extra"  # JSON of whatever else a record holds


def to_table(records: Sequence[Mapping]) -> pyarrow.Table:
    """One row a record; what a record lacks is null. Raises TypeError or ValueError for values of another type."""
    columns = {name: pyarrow.array([r.get(name) for r in records], kind) for name, kind in (SCALARS | STRUCTS).items()}
    columns |= {name: _arrays([r.get(name) for r in records], dtype) for name, dtype in ARRAYS.items()}
    calls = [record.get("calls") or [] for record in records]
    derived = {
        "tokens": [len(record["response_ids"]) if "response_ids" in record else None for record in records],
        "num_calls": [len(own) for own in calls],
        "statuses": [[call["status"] for call in own] for own in calls],
    }
    columns |= {name: pyarrow.array(derived[name], kind) for name, kind in DERIVED.items()}
    known = columns.keys()
    extras = [{key: value for key, value in record.items() if key not in known} for record in records]
    columns[_EXTRA] = pyarrow.array([json.dumps(extra) if extra else None for extra in extras], pyarrow.string())
    return pyarrow.table(columns)


def from_table(table: pyarrow.Table) -> list[dict]:
    """The records of `to_table`: token columns are arrays of their dtype, everything else plain Python values."""
    records: list[dict] = [{} for _ in range(len(table))]
    for name in table.column_names:
        if name in DERIVED:
            continue
        column = table.column(name)
        values = _rows(column) if name in ARRAYS else column.to_pylist()
        for record, value in zip(records, values, strict=True):
            if value is None:
                continue
            if name == _EXTRA:
                record |= json.loads(value)
            else:
                record[name] = value
    return records


def _arrays(rows: list, dtype: np.dtype) -> pyarrow.Array:
    """A list column from arrays (tokens,) or None."""
    arrays = [None if row is None else np.asarray(row, dtype) for row in rows]
    return pyarrow.array(arrays, pyarrow.large_list(pyarrow.from_numpy_dtype(dtype)))


def _rows(column: pyarrow.ChunkedArray) -> list[np.ndarray | None]:
    return [row.values.to_numpy(zero_copy_only=False) if row.is_valid else None for row in column]
