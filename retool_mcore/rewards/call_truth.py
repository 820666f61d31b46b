"""The right calls of a function-calling row, and whether the calls that a policy wrote are right.

A ground truth is a JSON text, one of

- a list of calls, in any order; an empty list says that no call is right. A call is either
  {"name", "arguments"}: exactly these values, where numbers compare as JSON numbers, or
  {"name", "accepted", "types", "required"}: `accepted` lists the right values of every parameter, "" among them for one
  that may be left out; values compare by the parameter's declared type (`accepts`), and a parameter in `required` may
  not be left out. Either may have "texts": "loose" (`loose_text`).
- {"calls": "any"}: one call or more, whichever.

Accepted values and types are those of the Berkeley leaderboard, and `accepts` follows its checker (bfcl_eval,
eval_checker/ast_eval/ast_checker.py): what that refuses is refused here.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retool_mcore.data.source_values import source_value
from retool_mcore.data.untrusted import canonical_json, same_json
from retool_mcore.errors import UserError

ANY = '{"calls": "any"}'
LOOSE = "loose"

_TYPES = {
    "string": str,
    "integer": int,
    "float": float,
    "number": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "object": dict,
    "any": str,
}
_DECLARED = re.compile(r"(?:(?P<language>java|javascript):)?(?P<outer>\w+)(?:\[(?P<inner>\w+)\])?")
_IGNORED = re.compile(r"[ ,./\-_*^]")


@dataclass(frozen=True)
class RightCall:
    """A call of a ground truth; `arguments` is None where `accepted` lists the right values."""

    name: str
    arguments: Mapping[str, Any] | None = None
    accepted: Mapping[str, list] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    required: Sequence[str] = ()
    loose: bool = False

    def names(self, given: Iterable[str]) -> list[str]:
        """Return the parameters of a right call that is nearest to one with the parameters `given`."""
        if self.arguments is not None:
            return list(self.arguments)
        given = set(given)
        return [name for name in self.accepted if name in given or not self._optional(name)]

    def takes(self, name: str, value: Any) -> bool:
        """Return whether `value` is right for the parameter `name`, one of `names`."""
        if self.arguments is None:
            return accepts(self.accepted[name], value, self.types.get(name, ""), self.loose)
        return _equal(value, self.arguments[name], self.loose)

    def is_met_by(self, call: Mapping) -> bool:
        """Return whether the call {"name", "arguments"} is right as a whole."""
        arguments = call["arguments"]
        if call["name"] != self.name or set(self.names(arguments)) != set(arguments):
            return False
        return all(self.takes(name, value) for name, value in arguments.items())

    def _optional(self, name: str) -> bool:
        return "" in self.accepted[name] and name not in self.required


@dataclass(frozen=True)
class Truth:
    """The right calls of a row; with `any_call` every call is right, and `calls` is empty."""

    calls: Sequence[RightCall]
    any_call: bool = False

    @property
    def no_call(self) -> bool:
        """Whether the right answer is no call."""
        return not self.calls and not self.any_call

    def is_met_by(self, calls: Sequence[Mapping] | None) -> bool:
        """Return whether `calls` are the right ones, in any order; None, which are calls that were not read, never are.

        Each right call takes the first that meets it, as the leaderboard's checker does.
        """
        if calls is None:
            return False
        if self.any_call:
            return bool(calls)
        left = list(calls)
        for right in self.calls:
            place = next((n for n, call in enumerate(left) if right.is_met_by(call)), None)
            if place is None:
                return False
            del left[place]
        return not left


def read_truth(ground_truth: str) -> Truth:
    """Return the ground truth that a text holds. Raises UserError when it is none: no reward could be right."""
    if not isinstance(ground_truth, str) or (truth := _read(ground_truth)) is None:
        raise UserError(
            "reward_model.ground_truth must be a JSON list of right calls (docs/tools.md), got "
            f"{str(ground_truth)[:80]!r}. Prepare the data set again."
        )
    return truth


@functools.lru_cache(maxsize=4096)  # a prompt's whole group has one truth, and several readers
def _read(text: str) -> Truth | None:
    try:
        calls = json.loads(text)
    except ValueError:
        return None
    if calls == json.loads(ANY):
        return Truth((), any_call=True)
    read = [_right_call(call) for call in calls] if isinstance(calls, list) else [None]
    return None if None in read else Truth([call for call in read if call is not None])


def _right_call(call: Any) -> RightCall | None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    loose = call.get("texts") == LOOSE
    rest = {key: value for key, value in call.items() if key != "texts" or not loose}
    if rest.keys() == {"name", "arguments"} and isinstance(call["arguments"], dict):
        return RightCall(call["name"], call["arguments"], loose=loose)
    if rest.keys() != {"name", "accepted", "types", "required"}:
        return None
    accepted, types, required = call["accepted"], call["types"], call["required"]
    fits = isinstance(accepted, dict) and isinstance(types, dict) and isinstance(required, list)
    if not fits or not all(isinstance(values, list) for values in accepted.values()):
        return None
    return RightCall(call["name"], None, accepted, types, required, loose)


def loose_text(text: str) -> str:
    """Return what the leaderboard compares of a text: no spaces, no `,./-_*^`, small letters, one kind of quotes."""
    return _IGNORED.sub("", text).lower().replace("'", '"')


def accepts(options: Sequence, value: Any, declared: str, loose: bool) -> bool:
    """Return whether `value` is one of `options`, the right values of a parameter of the type `declared`.

    declared: a type's name as `float`, `array[float]` or `java:long`. An integer is right for a float, 5.0 is not for
    an integer. A value of another type must have the type of the options, and equal one. Options of an object list the
    right values of each key. Where the type is not known, values compare as JSON.
    """
    match = _DECLARED.fullmatch(declared)
    if match is None or not match["language"] and match["outer"] not in _TYPES:
        return any(option != "" and _equal(value, option, loose) for option in options)
    if match["language"]:
        expected, inner, value = source_value(match["language"], match["outer"], match["inner"], value)
        if expected is None:
            return False
    else:
        expected = _TYPES[match["outer"]]
        inner = _TYPES.get(match["inner"] or "") if expected is list else None
        if expected is float and type(value) is int:
            value = _float(value)
    kind, actual = _kind_of(options), type(value)
    other_kind = kind is not None and kind is not expected
    if actual is expected:
        if inner is not None and not any(_items_fit(value, option, inner) for option in options):
            return False
    elif actual is kind:
        other_kind = True
    else:
        return False
    if other_kind or expected not in (str, list, dict):
        return any(_equal(value, option) for option in options)
    if expected is str:
        return any(type(option) is str and _equal(value, option, loose) for option in options)
    if expected is dict:
        return any(_is_object(value, option, loose) for option in options)
    if inner is dict:
        return any(_are_objects(value, option, loose) for option in options)
    return any(_is_list(value, option, loose) for option in options)


def _kind_of(options: Sequence) -> type | None:
    return next((type(option) for option in options if option != ""), None)


def _items_fit(items: list, option: Any, inner: type) -> bool:
    if type(option) is not list:
        return True
    return all(type(item) in (inner, _kind_of(option)) for item in items)


def _is_object(value: Any, option: Any, loose: bool) -> bool:
    if type(value) is not dict or type(option) is not dict:
        return False
    options = {key: known if type(known) is list else [] for key, known in option.items()}
    valid = all(key in options and any(_same(v, known, loose) for known in options[key]) for key, v in value.items())
    return valid and all(key in value or "" in known for key, known in options.items())


def _are_objects(values: list, option: Any, loose: bool) -> bool:
    pairs = zip(values, option, strict=False)
    return len(values) == len(option) and all(_is_object(value, known, loose) for value, known in pairs)


def _is_list(values: list, option: Any, loose: bool) -> bool:
    if type(option) is not list:
        return option == "" and not values
    pairs = zip(values, option, strict=False)
    return len(values) == len(option) and all(_same(value, known, loose) for value, known in pairs)


def _same(value: Any, known: Any, loose: bool) -> bool:
    # Anything deeper than an item is compared as written.
    return _equal(value, known, loose and type(value) is type(known) is str)


def _equal(value: Any, known: Any, loose: bool = False) -> bool:
    if loose:
        return canonical_json(_loosely(value)) == canonical_json(_loosely(known))
    return same_json(value, known)


def _loosely(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _loosely(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_loosely(part) for part in value]
    return loose_text(value) if isinstance(value, str) else value


def _float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
