"""JSON schemas of functions: is one valid, and do a call's arguments fit it? By the jsonschema library."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError, validators
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from retool_mcore.errors import UserError

_NAME = re.compile(r"\S.{0,199}", re.DOTALL)
_MAX_REASON = 160
_PATTERN_S = 0.05  # of one pattern on one text: 1,000 times what a pattern without nested repeats takes
_MAX_STEPS = 1000  # references followed for one call; without one, a check is as long as schema times arguments


def function_schema(name: str, description: str, parameters: dict) -> dict:
    """The OpenAI function schema of these parts."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def check_schema(schema: dict) -> None:
    """Raises UserError unless `schema` is an OpenAI function schema whose parameters are a JSON schema of an object."""
    function = schema.get("function") if isinstance(schema, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"a tool's schema must be {{type, function: {{name, parameters}}}}, got {str(schema)[:120]!r}.")
    parameters = function.get("parameters")
    if "unevaluatedProperties" in (text := json.dumps(parameters)) and "patternProperties" in text:
        raise UserError(
            f"the parameters of tool {name!r} use unevaluatedProperties beside patternProperties: drop one."
        )
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise UserError(f"the parameters of tool {name!r} must be a JSON schema of type object.")
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise UserError(
            f"the parameters of tool {name!r} are no JSON schema: {error.message[:_MAX_REASON]}."
        ) from error


def row_tools(row: Mapping[str, Any] | None) -> list[dict] | None:
    """The function schemas of a row's `extra_info.tools` (JSON text); None when it has none of its own.

    Raises UserError when it holds anything else.
    """
    text = (row or {}).get("tools")
    if not text:
        return None
    try:
        schemas = json.loads(text)
    except ValueError as error:
        raise UserError(f"extra_info.tools is not JSON ({error}): prepare the data again.") from error
    if not isinstance(schemas, list):
        raise UserError("extra_info.tools must be a JSON list of function schemas: prepare the data again.")
    for schema in schemas:
        check_schema(schema)
    return schemas


def argument_error(parameters: dict, arguments: dict) -> str | None:
    """Why `arguments` do not fit the JSON schema `parameters`, in a few words; None when they fit.

    What takes a pattern or a reference of the schema too long to check does not fit: the policy wrote it, and waits
    for no other.
    """
    try:
        error = best_match(_validator(json.dumps(parameters))(arguments))
    except (RecursionError, TimeoutError, Unresolvable, regex.error) as failure:
        return f"they cannot be checked ({type(failure).__name__})"
    if error is None:
        return None
    place = ".".join(str(part) for part in error.absolute_path)
    return (f"{place}: " if place else "") + error.message[:_MAX_REASON]


@functools.lru_cache(maxsize=4096)
def _validator(parameters_json: str) -> Callable[[Any], Iterator[ValidationError]]:
    """The errors of the value that it is called with, in bounded time."""
    steps = 0

    def reference(validator, target, instance, schema):
        nonlocal steps
        steps += 1
        if steps > _MAX_STEPS:
            raise TimeoutError
        yield from Draft202012Validator.VALIDATORS["$ref"](validator, target, instance, schema)

    bounded = validators.extend(Draft202012Validator, {**_BOUNDED, "$ref": reference, "$dynamicRef": reference})
    # An empty registry: a schema's reference must never be fetched.
    made = bounded(json.loads(parameters_json), registry=Registry())

    def errors(value: Any) -> Iterator[ValidationError]:
        nonlocal steps
        steps = 0
        return made.iter_errors(value)

    return errors


def _matches(pattern: str, text: str) -> bool:
    # The one engine with a time limit; a schema's author may write `(a+)+$`, and the policy the text for it.
    return regex.search(pattern, text, timeout=_PATTERN_S) is not None


def _pattern(validator, pattern: str, instance, schema):
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator, patterns: dict, instance, schema):
    for pattern, part in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator, allowed, instance, schema):
    if not isinstance(instance, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in instance:
        if name in schema.get("properties", {}) or any(_matches(pattern, name) for pattern in patterns):
            continue
        if allowed is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        elif isinstance(allowed, dict):
            yield from validator.descend(instance[name], allowed, path=name)


def _unique_items(validator, unique: bool, instance, schema):
    # The library compares each with each when they cannot be sorted.
    if unique and isinstance(instance, list) and len({json.dumps(i, sort_keys=True) for i in instance}) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


_BOUNDED = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
