"""What the pages say about keys: read from the typed classes, from the presets and from the translation to verl."""

import ast
import functools
import inspect
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from io import StringIO
from types import FunctionType
from typing import Any

from pydantic import TypeAdapter

from retool_mcore.config import to_verl
from retool_mcore.config.defaults import REQUIRED, Default
from retool_mcore.config.models.section import Section, key_of, only_in_presets, section_of

UNSET: Any = object()  # no default: a preset or the command line gives the value


def prose(text: str | None) -> str:
    return " ".join((text or "").split())


def described(kind: type[Section], name: str) -> str:
    """The docstring of a field, or that of the field which it replaces in a base class."""
    for base in kind.__mro__:
        field = getattr(base, "model_fields", {}).get(name)
        if field is not None and field.description:
            return prose(field.description)
    return ""


@functools.cache
def allowed(kind: type[Section], name: str) -> str:
    """The values that a field takes, in words; "" where its type says it all."""
    schema = TypeAdapter(kind.model_fields[name].rebuild_annotation()).json_schema()
    kinds = schema.get("anyOf", [schema])
    value = next((value for value in kinds if value != {"type": "null"}), {})
    value = value.get("items", value)
    bounds = {"minimum": ">= {:g}", "exclusiveMinimum": "> {:g}", "maximum": "<= {:g}", "exclusiveMaximum": "< {:g}"}
    words = [text.format(value[bound]) for bound, text in bounds.items() if bound in value]
    words += [", ".join(value["enum"])] if "enum" in value else []
    return " and ".join(words) + (" or null" if words and len(kinds) > 1 else "")


def fields(kind: type[Section], prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(dotted key, default, description) of every key of a section and of the sections in it, which come as a row
    `key.*` of their own. The default is UNSET where only presets have a value."""
    for name, field in kind.model_fields.items():
        key = f"{prefix}{key_of(name, field)}"
        if inner := section_of(field):
            yield f"{key}.*", UNSET, prose(inner.__doc__)
            yield from fields(inner, f"{key}.")
        else:
            no_default = field.is_required() or only_in_presets(field)
            why, values = described(kind, name), allowed(kind, name)
            if values and not all(re.search(rf"\b{re.escape(value)}\b", why) for value in values.split(", ")):
                why = f"{why} ({values})"
            yield key, UNSET if no_default else field.get_default(call_default_factory=True), why


def explanations(kind: type[Section], prefix: str = "") -> dict[str, str]:
    """The description of each dotted key of a section, and of the sections in it."""
    return {key.removesuffix(".*"): why for key, _, why in fields(kind, prefix)}


def shown(value: Any) -> str:
    """A default as a user would write it."""
    if value is UNSET or value == REQUIRED:
        return ""
    if isinstance(value, Default):
        text = value.text
    else:
        text = json.dumps(value) if value is None or isinstance(value, bool | dict | list) else str(value)
    return f"`{text}`".replace("|", "\\|")


def translation(stage: str) -> Iterator[tuple[str, str, str]]:
    """(key of verl, expression of our keys, comment) of what to_verl.py sets for a stage."""
    yield from _entries(getattr(to_verl, stage), "")


def _entries(function: FunctionType, prefix: str) -> Iterator[tuple[str, str, str]]:
    source = textwrap.dedent(inspect.getsource(function))
    (returned,) = [node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Return)]
    comments = {
        token.start[0]: token.string.removeprefix("# ")
        for token in tokenize.generate_tokens(StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()

    def comment(line: int) -> str:
        above = comments.get(line - 1, "") if lines[line - 2].lstrip().startswith("#") else ""
        return comments.get(line, above)

    def entries(node: ast.Dict, prefix: str, around: str) -> Iterator[tuple[str, str, str]]:
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:  # **common(c)
                yield from _entries(getattr(to_verl, ast.unparse(value.func)), prefix)  # type: ignore[attr-defined]
                continue
            name, why = f"{prefix}{key.value}", comment(key.lineno) or around  # type: ignore[attr-defined]
            if isinstance(value, ast.Dict):
                yield from entries(value, f"{name}.", why)
            else:
                yield name, _expression(value), why

    yield from entries(returned, prefix, "")


def _expression(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        value = node.value
        return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return re.sub(r"\bc\.", "", ast.unparse(node)).replace(".model_dump()", "").replace("lambda_", "lambda")
