"""The schema of a trajectory file: one row a trajectory, and the conversion of a record to a row and back."""

import json
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow

_TEXT, _BOOL = pyarrow.string(), pyarrow.bool_()
_INT, _LONG, _REAL = pyarrow.int32(), pyarrow.int64(), pyarrow.float64()

SCALARS = {
    "step": _INT,
    "uid": _TEXT,  # of the group: the samples of one prompt in one step
    "sample": _INT,  # number in the group
    "place": _INT,  # in the batch that the update read, verl's padding counted
    "mini_batch": _INT,  # of the step, from 0
    "index": _LONG,  # of the problem in its data set
    "data_source": _TEXT,
    "score": _REAL,
    "acc": _REAL,
    "pred": _TEXT,
    "ground_truth": _TEXT,
    "turns": _INT,
    "finish": _TEXT,
    "generate_s": _REAL,
    "tool_s": _REAL,
    "started": _REAL,
    "taken_over": _BOOL,
}
# One value a token: `prompt_ids` for the prompt, all others for the response.
ARRAYS = {
    "prompt_ids": np.dtype(np.int32),
    "response_ids": np.dtype(np.int32),
    "response_mask": np.dtype(bool),  # verl's, as the loss received it; the mask of the spans is another column
    "logprobs": np.dtype(np.float32),  # the rollout engine's
    "old_log_probs": np.dtype(np.float32),  # the trainer's, before the update
    "advantages": np.dtype(np.float32),
    "is_weights": np.dtype(np.float32),  # truncated importance weights of the rollout correction
}
_CALL = {
    "code": _TEXT,
    "malformed": _BOOL,
    "status": _TEXT,
    "stdout": _TEXT,
    "stderr": _TEXT,
    "value": _TEXT,
    "duration_s": _REAL,
    "turn": _INT,
    "start": _INT,
    "truncated": _BOOL,
    "tool": _TEXT,
    "arguments": _TEXT,
}
_TURN = {"programs": _INT, "boxed": _BOOL, "fakes": pyarrow.list_(_INT), "generate_s": _REAL, "tool_s": _REAL}
# Columns that are lists of structs.
STRUCTS = {
    "spans": pyarrow.list_(pyarrow.struct({"kind": _TEXT, "start": _INT, "end": _INT})),
    "versions": pyarrow.list_(pyarrow.struct({"version": _INT, "start": _INT, "end": _INT})),
    "calls": pyarrow.list_(pyarrow.struct(_CALL)),
    "turn_notes": pyarrow.list_(pyarrow.struct(_TURN)),
}
# Derived from other columns for the index alone: a list of trajectories reads neither tokens nor programs.
DERIVED = {"tokens": _INT, "num_calls": _INT, "statuses": pyarrow.list_(_TEXT)}
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
