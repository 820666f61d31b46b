"""JSON that a policy, or a program of its, wrote: read within bounds, so that no later reader of it can fail."""

import json
from decimal import Decimal
from typing import Any

# Far below Python's own limit: whoever compares, checks or writes the value calls itself once a level.
MAX_DEPTH = 64
MAX_CHARACTERS = 200_000  # whoever reads or compares more holds all other threads for longer than 50 ms
_TOO_DEEP = f"it is nested deeper than {MAX_DEPTH} levels"


def json_or_none(text: str, lines: bool = False) -> Any:
    """The value of `text`, or with `lines` those of its lines that are not empty, a list; None when it is no JSON."""
    try:
        return [read_json(line) for line in text.splitlines() if line.strip()] if lines else read_json(text)
    except ValueError:
        return None


def same_json(first: Any, second: Any) -> bool:
    """Return whether both values are the same JSON (see `canonical_json`)."""
    return canonical_json(first) == canonical_json(second)


def canonical_json(value: Any) -> str:
    """Return the JSON text that all spellings of one value share.

    Numbers count as numbers, at every depth: 5, 5.0 and 50e-1 are one value, and so are 1e23 and its 24 digits. `True`
    is no number, and the order of an object's keys does not count.
    """
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _canonical(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(part) for part in value]
    if isinstance(value, float) and value.is_integer():
        return int(Decimal(repr(value)))  # as it is written: int(1e23) has other digits than 10**23
    return value


def read_json(text: str, most: int = MAX_CHARACTERS) -> Any:
    """The value of `text`. Raises ValueError for no JSON, a key twice, above `most` characters or MAX_DEPTH levels."""
    if len(text) > most:
        raise ValueError(f"it is longer than {most:,} characters")
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("[") + text.count("{") > MAX_DEPTH:
        level = [value] if isinstance(value, dict | list) else []
        for _ in range(MAX_DEPTH):
            nested = (part.values() if isinstance(part, dict) else part for part in level)
            level = [item for items in nested for item in items if isinstance(item, dict | list)]
        if level:
            raise ValueError(_TOO_DEEP)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):  # readers differ in which value counts, and a reward would take either for the call
        raise ValueError("an object has a key twice")
    return fields
