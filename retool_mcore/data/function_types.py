"""Public data sets' ways of describing a function, turned into OpenAI function schemas.

They name types as Python does (`str`, `List[int]`, `str, optional`) or as Java does (`HashMap`), call an object a
`dict`, and list parameters bare (xLAM) or as a JSON schema (ToolACE, BFCL).
"""

import re
from collections.abc import Mapping
from typing import Any

from retool_mcore.data.function_schema import check_schema, function_schema
from retool_mcore.data.records import MalformedRow, field
from retool_mcore.errors import UserError

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


def tool_schemas(functions: Any, where: str) -> list[dict]:
    """The function schemas of a row's list of functions. Raises MalformedRow for a list or function that is none."""
    if not isinstance(functions, list) or not functions:
        raise MalformedRow(f"{where} is no list of functions")
    schemas = [tool_schema(function, where) for function in functions]
    names = [schema["function"]["name"] for schema in schemas]
    if len(set(names)) < len(names):
        raise MalformedRow(f"{where} describes two functions of one name")
    return schemas


def tool_schema(function: Any, where: str) -> dict:
    """The function schema of {"name", "description", "parameters"}, alone or in {"type", "function"}."""
    if isinstance(function, dict) and isinstance(function.get("function"), dict):
        function = function["function"]
    name = field(function, "name", f"a function of {where}")
    found = function.get("parameters") or {}
    if not isinstance(found, dict):
        raise MalformedRow(f"the parameters of a function of {where} are no object")
    parameters = _object(found) if _is_schema(found) else _flat(found)
    schema = function_schema(str(name), str(function.get("description") or ""), parameters)
    try:
        check_schema(schema)
    except UserError as error:
        raise MalformedRow(f"a function of {where} cannot be described as a JSON schema") from error
    return schema


def _is_schema(parameters: Mapping) -> bool:
    # A parameter of xLAM's may be called "type" or "properties"; then it is described by an object, or is no object.
    return isinstance(parameters.get("type"), str) and isinstance(parameters.get("properties", {}), dict)


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
