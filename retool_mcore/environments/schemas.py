"""The function schemas of a repository's tools, from schemas.yaml."""

from pathlib import Path

import yaml

from retool_mcore.data.formats import TOOL
from retool_mcore.data.function_schema import function_schema


def _schema(name: str, description: str, required: tuple[str, ...] = (), properties: dict | None = None) -> dict:
    parameters = {"type": "object", "properties": properties or {}, "required": list(required)}
    return function_schema(name, description, parameters | {"additionalProperties": False})


SCHEMAS = [
    _schema(name, **tool) for name, tool in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
]
SCHEMAS.insert(-1, TOOL)
