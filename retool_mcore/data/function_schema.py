"""JSON schemas of functions: is one valid, and do a call's arguments fit it (by the jsonschema library)?

Public data sets' ways of describing a function become one (`tool_schemas`): they name types as Python does (`str`,
`List[int]`, `str, optional`) or as Java does (`HashMap`), call an object a `dict`, and list parameters bare (xLAM) or
as a JSON schema (ToolACE, BFCL).
"""

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

from retool_mcore.data.records import MalformedRow, field
from retool_mcore.data.untrusted import canonical_json, json_or_none
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
        raise UserError(f"the parameters of tool {name!r} use unevaluatedProperties with patternProperties: drop one.")
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise UserError(f"the parameters of tool {name!r} must be a JSON schema of type object.")
    try:
        _check_parameters(text)
    except SchemaError as error:
        reason = error.message[:_MAX_REASON]
        raise UserError(f"the parameters of tool {name!r} are no JSON schema: {reason}.") from error


@functools.lru_cache(maxsize=4096)  # rows of a data set list the same functions
def _check_parameters(text: str) -> None:
    Draft202012Validator.check_schema(json.loads(text))


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
    if unique and isinstance(instance, list) and len(set(map(canonical_json, instance))) < len(instance):
        yield ValidationError(f"{instance!r} has non-unique elements")


_BOUNDED = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}


# Types of JSON schema, and what public data sets call them.
_TYPES = {
    "string": ("string", "str", "char", "character"),
    "integer": ("integer", "int", "long", "short", "byte"),
    "number": ("number", "float", "double"),
    "boolean": ("boolean", "bool"),
    "array": ("array", "list", "tuple", "set", "sequence", "arraylist"),
    "object": ("object", "dict", "mapping", "hashmap", "hashtable"),
}
_BY_NAME = {name: kind for kind, names in _TYPES.items() for name in names}
_GENERIC = re.compile(r"(?P<outer>\w+)\s*\[(?P<inner>.*)\]", re.DOTALL)


def tool_schemas(functions: Any, where: str, may_be_empty: bool = False) -> list[dict]:
    """The function schemas of a row's list of functions, each an object or a JSON text of one.

    Raises MalformedRow for a list or function that is none, and for an empty list unless it `may_be_empty`.
    """
    if not isinstance(functions, list) or not functions and not may_be_empty:
        raise MalformedRow(f"{where} is no list of functions")
    schemas = [tool_schema(function, where) for function in functions]
    names = [schema["function"]["name"] for schema in schemas]
    if len(set(names)) < len(names):
        raise MalformedRow(f"{where} describes two functions of one name")
    return schemas


def tool_schema(function: Any, where: str) -> dict:
    """The function schema of {"name", "description", "parameters"}, alone or in {"type", "function"}."""
    if isinstance(function, str):
        function = json_or_none(function)
    if isinstance(function, dict) and isinstance(function.get("function"), dict):
        function = function["function"]
    name = field(function, "name", f"a function of {where}")
    declared = function.get("parameters") or {}
    if not isinstance(declared, dict):
        raise MalformedRow(f"the parameters of a function of {where} are no object")
    # A parameter of xLAM's may be called "type" or "properties"; then it is described by an object, or is no object.
    is_schema = isinstance(declared.get("type"), str) and isinstance(declared.get("properties", {}), dict)
    parameters = _object(declared) if is_schema else _flat(declared)
    schema = function_schema(str(name), str(function.get("description") or ""), parameters)
    try:
        check_schema(schema)
    except UserError as error:
        raise MalformedRow(f"a function of {where} cannot be described as a JSON schema") from error
    return schema


def _flat(parameters: Mapping) -> dict:
    """xLAM's: {name: {"type", "description", "default"}}; one without a default that is not "optional" is required."""
    properties, required = {}, []
    for name, described in parameters.items():
        described = described if isinstance(described, dict) else {}
        properties[name] = _value(described)
        optional = "optional" in str(described.get("type", "")).lower() or "default" in described
        required += [] if optional else [name]
    return {"type": "object", "properties": properties, "required": required}


def _object(described: Mapping) -> dict:
    properties = described.get("properties") or {}
    named = described.get("required")
    required = [name for name in named if name in properties] if isinstance(named, list) else []
    return {
        "type": "object",
        "properties": {name: _value(part if isinstance(part, dict) else {}) for name, part in properties.items()},
        "required": list(dict.fromkeys(required)),
    }


def _value(described: Mapping) -> dict:
    """The JSON schema of one value. A keyword or a type that is not understood constrains nothing."""
    schema = _type(described["type"]) if isinstance(described.get("type"), str) else {}
    if schema.get("type") == "object" and isinstance(described.get("properties"), dict):
        schema = _object(described)
    if schema.get("type") == "array" and isinstance(described.get("items"), dict):
        schema["items"] = _value(described["items"])
    if isinstance(described.get("description"), str):
        schema["description"] = described["description"]
    if isinstance(described.get("enum"), list) and described["enum"]:
        schema["enum"] = described["enum"]
    if "default" in described:
        schema["default"] = described["default"]
    return schema


def _type(name: str) -> dict:
    """`str, optional` is a string, `List[int]` an array of integers, `Union[...]` and `any` are anything."""
    name = re.sub(r",\s*optional\b.*", "", name, flags=re.IGNORECASE | re.DOTALL).strip().removeprefix("typing.")
    generic = _GENERIC.fullmatch(name)
    outer = (generic["outer"] if generic else name).lower()
    if outer == "optional" and generic:
        return _type(generic["inner"])
    kind = _BY_NAME.get(outer)
    if kind is None:
        return {}
    if kind == "array" and generic and outer != "tuple" and (items := _type(generic["inner"])):
        return {"type": kind, "items": items}
    return {"type": kind}
