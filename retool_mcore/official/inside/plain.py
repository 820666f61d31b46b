"""Values as JSON and back, with their types: a grader tells a tuple from a list, and 1 from "1" as a key.

encode: None, bool, int, float and str stay; a list becomes a list; all else is an object with one key that names the
type. Integers of any size are JSON's. decode reads nothing but that: a foreign process cannot make it build a type.
"""

import datetime
import decimal
import fractions
from typing import Any

_PLAIN = (type(None), bool, int, float, str)
_TEXTS = {
    datetime.date: datetime.date.fromisoformat,
    datetime.datetime: datetime.datetime.fromisoformat,
    datetime.time: datetime.time.fromisoformat,
    decimal.Decimal: decimal.Decimal,
    fractions.Fraction: fractions.Fraction,
    complex: complex,
}
_LISTS: dict[type, Any] = {tuple: tuple, set: set, frozenset: frozenset, bytes: bytes, range: lambda v: range(*v)}
_KINDS = {kind.__name__: kind for kind in (*_TEXTS, *_LISTS, dict)}
MOST_DEPTH = 100


def encode(value: Any, depth: int = 0) -> Any:
    """Return `value` for json.dumps. Raises TypeError for a value of another type, ValueError for one too deep."""
    kind = type(value)
    if depth > MOST_DEPTH:
        raise ValueError(f"a value is nested deeper than {MOST_DEPTH}")
    if kind in _PLAIN:
        return value
    if kind is list:
        return [encode(part, depth + 1) for part in value]
    if kind is dict:
        return {"dict": [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in value.items()]}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind in _LISTS:
        return {kind.__name__: [encode(part, depth + 1) for part in value]}
    if kind in _TEXTS:
        return {kind.__name__: value.isoformat() if hasattr(value, "isoformat") else str(value)}
    for base in (bool, int, float, str):  # a NumPy scalar, or an enumeration's member
        if isinstance(value, base):
            return base(value)
    raise TypeError(f"a value of type {kind.__name__} cannot be carried")


def decode(value: Any) -> Any:
    """Return the value that `encode` made `value` of. Raises ValueError for what it makes of none."""
    if type(value) in _PLAIN:
        return value
    if type(value) is list:
        return [decode(part) for part in value]
    if type(value) is not dict or len(value) != 1:
        raise ValueError("not a value that `encode` writes")
    ((name, content),) = value.items()
    kind = _KINDS.get(name)
    if kind in _TEXTS and type(content) is str:
        return _TEXTS[kind](content)
    if kind is None or type(content) is not list:
        raise ValueError(f"not a value that `encode` writes: {name}")
    parts = decode(content)
    return dict(parts) if kind is dict else _LISTS[kind](parts)
