"""Calls that list the accepted values of each parameter, as the Berkeley leaderboard writes its answers.

[{function: {parameter: [values]}}], with "" among the values of a parameter that may be left out, becomes the ground
truth of rewards/call_truth.py, with the types that the row's own functions declare.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from retool_mcore.data.records import MalformedRow

_WITH_ITEMS = ("array", "tuple", "list", "Array", "ArrayList")


def lists_accepted_values(answers: Any) -> bool:
    """Return whether `answers` are calls in the leaderboard's form, and not a list of {"name", "arguments"}."""
    return (
        isinstance(answers, list)
        and bool(answers)
        and all(
            isinstance(call, dict) and len(call) == 1 and all(isinstance(values, dict) for values in call.values())
            for call in answers
        )
    )


def accepted_calls(answers: Any, functions: Sequence[Any], where: str, language: str = "") -> list[dict]:
    """Return the ground truth's calls. `functions` are the row's, in its own words; `language` that of its literals.

    A parameter that the function does not describe has no right value, and neither has one that it requires and the
    answers do not list: a call can then not be right, as for the leaderboard. Raises MalformedRow.
    """
    if not lists_accepted_values(answers):
        raise MalformedRow(f"{where} is not a list of {{function: {{parameter: [values]}}}}")
    described = {function["name"]: function for function in map(_bare, functions)}
    calls = []
    for call in answers:
        ((name, values),) = call.items()
        if name not in described:
            raise MalformedRow(f"a call of {where} names a function that the row does not describe")
        if not all(isinstance(options, list) for options in values.values()):
            raise MalformedRow(f"{where} is not a list of {{function: {{parameter: [values]}}}}")
        calls.append(_accepted_call(name, values, described[name].get("parameters") or {}, language))
    return calls


def _accepted_call(name: str, values: Mapping[str, list], parameters: Mapping, language: str) -> dict:
    properties = parameters.get("properties") or {}
    required = [known for known in parameters.get("required") or [] if known in properties]
    accepted = {known: options for known, options in values.items() if known in properties}
    accepted |= {known: [""] if "" in options else [] for known, options in values.items() if known not in properties}
    accepted |= {known: [] for known in required if known not in values}
    types = {known: _declared(properties[known], language) for known in accepted if known in properties}
    return {"name": name, "accepted": accepted, "types": types, "required": required}


def _declared(described: Any, language: str) -> str:
    """Return the declared type as `float`, `array[float]` or `java:long`; "" without one."""
    kind = described.get("type") if isinstance(described, Mapping) else None
    if not isinstance(kind, str) or not kind:
        return ""
    items = described.get("items")
    inner = items.get("type") if kind in _WITH_ITEMS and isinstance(items, Mapping) else None
    return (f"{language}:" if language else "") + kind + (f"[{inner}]" if isinstance(inner, str) else "")


def _bare(function: Any) -> Mapping:
    inner = function.get("function") if isinstance(function, Mapping) else None
    return inner if isinstance(inner, Mapping) else function
