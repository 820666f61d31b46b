"""Defaults that depend on other keys, declared where a field is, and how they are worked out.

A preset or the command line replaces such a default; a null of a preset leaves it.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from retool_mcore.errors import UserError

_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_ENVIRONMENT = "oc.env:"  # ${oc.env:NAME} stays: the stage reads the environment, and no file holds its values


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()  # no key of this name
REQUIRED = "???"  # a value that a preset or the command line must give
PRESET = "preset"  # marks a field that is a key only where a preset has it


@dataclass(frozen=True)
class Default:
    """A default worked out of other keys; `text` is how the documentation shows it."""

    keys: tuple[str, ...]
    function: Callable[..., Any]
    text: str
    stands_in: bool = False  # a preset's number becomes the alternative, instead of replacing this default

    def with_alternative(self, value: Any) -> "Default":
        return stands_in(self.keys[0], value) if self.stands_in else self


def follows(key: str, otherwise: Any = MISSING) -> Any:
    """The value of `key`; where no section has it, `otherwise`, or without that an error."""

    def same(value: Any) -> Any:
        if value is not MISSING or otherwise is not MISSING:
            return otherwise if value is MISSING else value
        raise UserError(f"this configuration has no {key}")

    rest = "" if otherwise is MISSING else f", else {shown(otherwise)}"
    return Default((key,), same, f"${{{key}}}{rest}")


def computed(function: Callable[..., Any], *keys: str) -> Any:
    """`function` of the values of `keys`, each MISSING where no section has it."""
    return Default(keys, function, f"{function.__name__}({', '.join(keys)})")


def stands_in(key: str, alternative: Any) -> Any:
    """The value of `key`, where it has one, in place of a preset's number; else that, or `alternative`."""
    text = f"${{{key}}}, else {shown(alternative)}"
    return Default((key,), lambda value: alternative if value in (None, MISSING) else value, text, stands_in=True)


def preset(default: Any = None) -> Any:
    """A field that is a key only where the group's preset has it; a null there stands for `default`."""
    return Field(default=default, json_schema_extra={PRESET: True})


def shown(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def at(tree: Any, key: str) -> Any:
    """Return the value at a dotted key of nested mappings, or MISSING."""
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return MISSING
        tree = tree[part]
    return tree


class Values:
    """The values of a tree (nested dicts) that holds plain values, texts with `${a.b}`, and defaults."""

    def __init__(self, tree: Mapping[str, Any]) -> None:
        self.tree = tree
        self._known: dict[str, Any] = {}
        self._open: list[str] = []

    def raw(self, key: str) -> Any:
        """Return the raw value at a dotted key, or MISSING."""
        return at(self.tree, key)

    def value(self, key: str) -> Any:
        """The value of a dotted key, or MISSING. Raises UserError for one that cannot be worked out."""
        if key not in self._known:
            if key in self._open:
                raise _unworkable(key, f"it follows itself by {', '.join(self._open[self._open.index(key) :])}")
            self._open.append(key)
            try:
                self._known[key] = self.of(self.raw(key), key)
            finally:
                self._open.pop()
        return self._known[key]

    def of(self, value: Any, key: str) -> Any:
        """`value`, which stands at `key`, without defaults and references."""
        if isinstance(value, Mapping):
            return {name: self._entry(entry, f"{key}.{name}".lstrip(".")) for name, entry in value.items()}
        if isinstance(value, list):
            return [self.of(entry, f"{key}.{place}") for place, entry in enumerate(value)]
        if isinstance(value, Default):
            arguments = [self.value(name) for name in value.keys]
            try:
                return value.function(*arguments)
            except UserError as error:
                raise _unworkable(key, error) from error
            except TypeError:
                if None not in arguments:
                    raise
                return None  # the null is refused where it stands
        if isinstance(value, str) and "${" in value:
            return self._text(value, key)
        return value

    def _entry(self, value: Any, key: str) -> Any:
        return self.value(key) if self.raw(key) is value else self.of(value, key)  # what a list holds has no key

    def sources(self, key: str) -> Iterator[str]:
        """`key`, and every key that its value follows."""
        seen, left = set(), [key]
        while left:
            name = left.pop()
            if name in seen:
                continue
            seen.add(name)
            yield name
            value = self.raw(name)
            left += value.keys if isinstance(value, Default) else references(value)

    def _text(self, text: str, key: str) -> Any:
        def of(reference: str) -> Any:
            if reference.startswith(_ENVIRONMENT):
                return f"${{{reference}}}"
            if (value := self.value(reference)) is MISSING:
                raise _unworkable(key, f"Interpolation key '{reference}' not found")
            return value

        if "${" in _REFERENCE.sub("", text):
            raise _unworkable(key, f"{text} holds a reference in a reference; write `${{a.b}}` with one key")
        if whole := _REFERENCE.fullmatch(text):
            return of(whole[1])
        return _REFERENCE.sub(lambda match: shown(of(match[1])), text)


def references(value: Any) -> list[str]:
    """The keys that a text names as `${a.b}`."""
    matches = _REFERENCE.findall(value) if isinstance(value, str) else []
    return [key for key in matches if not key.startswith(_ENVIRONMENT)]


def _unworkable(key: str, reason: object) -> UserError:
    message = str(reason).splitlines()[0].removesuffix(".")
    if message.startswith("the value of "):  # of a key that this one follows
        return UserError(f"{message}.")
    return UserError(f"the value of {key} cannot be worked out: {message}.")
