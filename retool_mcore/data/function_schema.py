"""JSON schemas of functions: is one valid, and do a call's arguments fit it? By the jsonschema library."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from retool_mcore.errors import UserError

_NAME = re.compile(r"\S.{0,199}", re.DOTALL)
_MAX_REASON = 160


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
    """Why `arguments` do not fit the JSON schema `parameters`, in a few words; None when they fit."""
    try:
        error = best_match(_validator(json.dumps(parameters)).iter_errors(arguments))
    except (RecursionError, Unresolvable) as failure:
        return f"they cannot be checked ({type(failure).__name__})"
    if error is None:
        return None
    place = ".".join(str(part) for part in error.absolute_path)
    return (f"{place}: " if place else "") + error.message[:_MAX_REASON]


@functools.lru_cache(maxsize=4096)
def _validator(parameters_json: str) -> Draft202012Validator:
    # An empty registry: a schema's reference must never be fetched.
    return Draft202012Validator(json.loads(parameters_json), registry=Registry())
