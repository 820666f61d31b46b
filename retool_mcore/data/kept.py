"""The columns of a data file that its problems carry for the reward: `data.file.keep`."""

import datetime
import difflib
import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from retool_mcore.data.records import MalformedRow, at
from retool_mcore.errors import UserError

COLUMN = "row"  # the field of extra_info that holds them, as JSON: the rows of one file may differ in their types


class Kept:
    """The columns `names` (dotted paths, as those of question and answer) of one row after the other."""

    def __init__(self, names: Iterable[str]):
        self.names = tuple(names)
        self.missing = set(self.names)  # in all rows so far
        self.columns: dict[str, None] = {}  # of all rows so far, in order

    def of(self, row: Mapping) -> dict[str, Any]:
        """Return the row's values, None where it lacks the column. Raises MalformedRow for what JSON cannot hold."""
        if self.missing:
            self.columns |= dict.fromkeys(row)
        values = {}
        for name in self.names:
            try:
                value = at(row, name)
            except MalformedRow:
                values[name] = None
                continue
            self.missing.discard(name)
            values[name] = _plain(value, name)
        return values

    def check(self, source: str) -> None:
        """Refuse a column that no row had. Raises UserError."""
        for name in self.names:
            if name in self.missing and self.columns:
                raise UserError(
                    f"data.file.keep: no row of {source} has {name!r}: {nearest_column(name, self.columns)}the columns "
                    f"are {', '.join(self.columns)}."
                )


def nearest_column(name: str, columns: Iterable[str]) -> str:
    """Return "did you mean 'X'? " for the column that `name` most likely means, "" where none is near."""
    by_lower = {str(column).lower(): column for column in columns}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[matches[0]]!r}? " if matches else ""


def kept_json(extra: Mapping[str, Any]) -> str:
    """Return the columns as the text that a parquet holds."""
    return json.dumps(dict(extra), ensure_ascii=False)


def read_kept(extra_info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that a row of a parquet carries in its `extra_info`; {} where there are none.

    Raises UserError for other content than `kept_json` writes.
    """
    text = extra_info.get(COLUMN)
    if not text:
        return {}
    try:
        content = json.loads(text)
    except (TypeError, ValueError) as error:
        raise UserError(f"extra_info.{COLUMN} is not JSON ({error}): prepare the data again.") from error
    if not isinstance(content, dict):
        raise UserError(f"extra_info.{COLUMN} is {type(content).__name__}, expected an object: prepare the data again.")
    return content


def _plain(value: Any, name: str) -> Any:
    """Return the value as JSON holds it: dates and times in ISO form, decimals and durations as text."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta | Decimal):
        return str(value)
    if isinstance(value, list | tuple):
        return [_plain(item, name) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, name) for key, item in value.items()}
    raise MalformedRow(f"{name} holds {type(value).__name__}, which JSON cannot hold")
