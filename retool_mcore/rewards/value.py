"""The number that a reward function returned, whatever its type."""

import math
from typing import Any

_SHOWN = 80  # characters of a value that is no number


def number(value: Any, source: str) -> float:
    """Return `value` as a float: a number of any library, a bool, or an array or tensor of one element.

    source: what returned it, for the message. Raises ValueError for what is no finite number.
    """
    try:
        # Text may spell a number, but a function that returns text means something else.
        result = (
            math.nan if isinstance(value, str | bytes) else float(value.item() if hasattr(value, "item") else value)
        )
    except (TypeError, ValueError, OverflowError, RuntimeError):
        result = math.nan
    if math.isfinite(result):
        return result
    shown = " ".join(repr(value).split())[:_SHOWN]
    raise ValueError(f"{source} returned {shown} (of type {type(value).__name__}): expected a finite number")
