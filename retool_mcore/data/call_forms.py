"""The forms in which a function call is read, from a policy's text and from rows of data.

A call is a JSON object {"name", "arguments"}. `parameters` may stand for `arguments`, which may be a JSON text of an
object, as OpenAI has them. An `id`, a `type` and an `index` next to them are ignored, and OpenAI's object around them,
{"id", "type", "function": {"name", "arguments"}}, is opened. A block holds one call, a JSON list of calls or one call a
line, and may have a fence (```json) around it.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from retool_mcore.data.untrusted import json_or_none, read_json

_ARGUMENTS = ("arguments", "parameters")
_IGNORED = ("id", "type", "index")
_FENCES = ("```", "```json", "```JSON")


class CallParts(NamedTuple):
    """The parts of one call: None for a name or arguments that are missing or of another type, and why."""

    name: str | None
    arguments: dict | None
    reason: str


def call_parts(value: Any) -> CallParts:
    """Return the parts of a call in one of the forms above; `reason` is "" where it is one."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict) and "name" not in value:
        extra = _others(value, ("function",))
        parts = call_parts(value["function"])
        return parts if parts.reason or not extra else parts._replace(reason=_extra(extra))
    if not isinstance(value, dict):
        return CallParts(None, None, f"a call is a JSON object, not {_shown(value)}")
    name = value["name"] if isinstance(value.get("name"), str) else None
    held = [key for key in _ARGUMENTS if key in value]
    arguments = value[held[0]] if held else None
    if isinstance(arguments, str):
        arguments = json_or_none(arguments)
    arguments = arguments if isinstance(arguments, dict) else None
    extra = _others(value, ("name", *_ARGUMENTS))
    if name is None:
        reason = "a call has no name"
    elif len(held) > 1:
        reason = "a call has both arguments and parameters"
    elif not held:
        reason = "a call has no arguments"
    elif arguments is None:
        reason = f"the {held[0]} of a call are no JSON object"
    else:
        reason = _extra(extra) if extra else ""
    return CallParts(name, None if len(held) > 1 else arguments, reason)


def read_call(value: Any) -> dict:
    """Return a call as {"name", "arguments"}. Raises ValueError, which says why, for what is none."""
    parts = call_parts(value)
    if parts.reason:
        raise ValueError(parts.reason)
    return {"name": parts.name, "arguments": parts.arguments}


def without_fence(body: str) -> str:
    """Return what a block holds without the fence around it."""
    fence, _, rest = body.strip().partition("\n")
    if fence.rstrip() in _FENCES and rest.endswith("```"):
        return rest.removesuffix("```").strip()
    return body


def block_values(body: str, lines: bool = True) -> list:
    """Return the JSON values that a call block holds: of a list its items, with `lines` those of the lines else.

    Raises ValueError for what is no JSON.
    """
    body = without_fence(body)
    try:
        values = read_json(body)
    except ValueError:
        values = json_or_none(body, lines=True) if lines else None
        if not values:
            raise
        return values
    return values if isinstance(values, list) else [values]


def read_calls(values: Iterable) -> list[dict]:
    """Return the calls as [{"name", "arguments"}]. Raises ValueError, which says why, when one is none."""
    return [read_call(value) for value in values]


def _others(value: dict, known: tuple[str, ...]) -> list[str]:
    return [key for key in value if key not in known and key not in _IGNORED]


def _extra(keys: list[str]) -> str:
    return f"a call has the key {keys[0][:40]!r}, which is none of a call's"


def _shown(value: Any) -> str:
    return {list: "a list", str: "a text", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
