"""A section of the configuration: a typed class whose fields are its keys, and the sentences that refuse a value."""

import functools
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from retool_mcore.config.defaults import PRESET, REQUIRED
from retool_mcore.config.kinds import EXPECTED, PATTERNS
from retool_mcore.errors import UserError

Kind = TypeVar("Kind")
_adapter: Any = functools.cache(TypeAdapter)  # making one takes as long as a check


class Section(BaseModel):
    """Base of all sections. A field's docstring says what the key is; its type is the range that is checked."""

    model_config = ConfigDict(strict=True, populate_by_name=True, use_attribute_docstrings=True, defer_build=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _left_open(cls, value: Any, check: Any) -> Any:
        """A text of the environment (`${oc.env:NAME}`) is known only where the stage runs."""
        return value if isinstance(value, str) and "${oc.env:" in value else check(value)

    @classmethod
    def of_preset(cls, key: str, value: Any) -> Any:
        """`value` as a preset writes it for `key`, in the form that the tree has."""
        return value


def key_of(name: str, field: FieldInfo) -> str:
    """The name of a field's key: `lambda_` is `lambda`."""
    return field.alias or name


def section_of(field: FieldInfo) -> type[Section] | None:
    """The class of a field that is a section, also of one that only some presets have (`Sft | None`)."""
    kinds = [field.annotation, *getattr(field.annotation, "__args__", ())]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def only_in_presets(field: FieldInfo) -> bool:
    return isinstance(field.json_schema_extra, dict) and PRESET in field.json_schema_extra


def is_open(kind: type[Section]) -> bool:
    """Whether a section takes keys that its class does not name."""
    return kind.model_config.get("extra") == "allow"


def defaults(kind: type[Section]) -> dict[str, Any]:
    """The tree of a section's keys before presets and overrides."""
    tree: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        inner = section_of(field)
        if only_in_presets(field):
            continue
        if inner and field.is_required():
            tree[key_of(name, field)] = defaults(inner)
        else:
            value = REQUIRED if field.is_required() else field.get_default(call_default_factory=True)
            tree[key_of(name, field)] = value
    return tree


def validate(kind: type[Kind], value: Any, key: str = "", first: Collection[str] = (), partial: bool = False) -> Kind:
    """`value` (plain) as `kind`. Raises UserError, which names the first wrong key, where it is none.

    key: where the value stands. first: keys whose errors are reported before those of keys that follow them.
    partial: keys may be missing, as in the configuration of an older run.
    """
    try:
        return _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        errors = error.errors()
    refused = [(_name(key, one), one) for one in errors if not (partial and one["type"] == "missing")]
    if not refused:
        return None  # type: ignore[return-value]
    # A misspelt key is missing, too.
    refused.sort(key=lambda one: (one[1]["type"] != "extra_forbidden", one[0] not in first))
    raise UserError(_sentence(*refused[0]))


def _name(key: str, error: ErrorDetails) -> str:
    return ".".join([*filter(None, [key]), *map(str, error["loc"])])


def _sentence(key: str, error: ErrorDetails) -> str:
    context: Mapping[str, Any] = error.get("ctx", {})
    if error["type"] == "string_pattern_mismatch":
        expected = PATTERNS[context["pattern"]]
    else:
        expected = EXPECTED.get(error["type"], error["msg"]).format(**context)
    value = "null" if error["input"] is None else error["input"]
    return f"{key}{'' if error['type'] == 'missing' else f'={value}'}: expected {expected}."
