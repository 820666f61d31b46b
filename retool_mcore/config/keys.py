"""The keys of the typed configuration with their defaults and docstrings, for `--help` and the pages."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from pydantic import TypeAdapter

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
            why, values = described(kind, name), allowed(kind, name)  # type: ignore[arg-type]
            if values and not all(re.search(rf"\b{re.escape(value)}\b", why) for value in values.split(", ")):
                why = f"{why} ({values})"
            yield key, UNSET if no_default else field.get_default(call_default_factory=True), why


def explanations(kind: type[Section], prefix: str = "") -> dict[str, str]:
    """The description of each dotted key of a section, and of the sections in it."""
    return {key.removesuffix(".*"): why for key, _, why in fields(kind, prefix)}
