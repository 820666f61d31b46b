"""Command-line overrides: read with Hydra's grammar, checked against the configuration they change, then applied.

Hydra accepts a misspelt key under `+` and reports the rest in its own words. Here every key must exist already, every
value must have the type of the one it replaces, and an error is one sentence with the nearest valid key.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from retool_mcore.errors import UserError
from retool_mcore.files import at_home

_SYNCHRONOUS = "every save is synchronous, so leave it out"
_OURS = "it is not of Megatron, so set model.lora.rank"
_NO_ADAPTERS = "a critic has no adapters, so leave it out"
# Keys that no longer exist, or that verl has and we do not pass on; and why.
GONE = {
    "train.async_save": _SYNCHRONOUS,
    "parallel.async_save": _SYNCHRONOUS,
    "parallel.megatron.override_mcore_model_config.tp_overlap": "it took 0.6 to 2.9 % off an update, so leave it out",
    "sandbox.cache_mb": "programs are no longer cached, since a step hardly waits for them, so leave it out",
    "verl.model.lora_rank": _OURS,
    "verl.model.lora_adapter_path": _OURS,
    "verl.actor_rollout_ref.model.lora_rank": _OURS,
    "verl.actor_rollout_ref.model.lora_adapter_path": _OURS,
    "verl.critic.model.lora.rank": _NO_ADAPTERS,
    "verl.critic.model.lora_rank": _NO_ADAPTERS,
}
NEAR = 0.75  # difflib's ratio: train.step and train.steps have 0.95, foo and toolbox.use 0.43


class Unknown(UserError):
    """A stage has not the key, or the group, `key`."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Value:
    """One `key=value`: `value` as Python sees it, `text` as the user typed it."""

    key: str
    value: Any
    text: str
    forced: bool  # written +key or ++key


def parse(overrides: Iterable[str], config_dir: Path) -> tuple[dict[str, str], list[Value]]:
    """Splits overrides into group choices ({group: choice}) and values. A folder or hub name in place of a model's
    choice is `model=folder model.path=THAT`. Raises UserError for malformed text, a deletion, a sweep, or a choice that
    its group does not have."""
    choices, values = {}, []
    for text in overrides:
        override = _read(text)
        if override.is_delete():
            raise UserError(f"{text!r}: a key cannot be deleted; set it to null or to another value instead.")
        if override.is_sweep_override():
            raise _several(text)
        if override.package is not None:
            raise UserError(f"{text!r}: '@' is not supported; name the full key, as in model.path=FOLDER.")
        key, forced = override.key_or_group, override.is_add() or override.is_force_add()
        value = at_home(override.value())
        if not forced and (config_dir / key).is_dir():
            choices[key] = _choice(key, value, config_dir)
            if key == "model" and choices[key] != str(value):
                values.append(Value("model.path", str(value), str(value), False))
            continue
        typed = override.input_line.split("=", 1)[1] if override.input_line else str(value)
        typed = value if isinstance(value, str) else str(value.text) if isinstance(value, QuotedString) else typed
        values.append(Value(key, value, typed, forced))
    return choices, values


def _read(text: str) -> Override:
    """Read one override. A value that Hydra's grammar cannot read is a text, also within a list or a section: paths
    hold `~`, `#`, `=`, parentheses and letters of any script."""
    key, _, value = text.partition("=")
    opens = value.lstrip().startswith(("[", "{"))
    as_text = f"{key}={_with_quoted_parts(value.strip()) if opens else _quoted(value)}"
    of_json = _of_json(value) if opens else None
    readings = [text, as_text] if of_json is None else [text, f"{key}={of_json}", as_text]
    for reading in readings if "=" in text else [text]:
        with suppress(HydraException):
            override = OverridesParser.create().parse_override(reading)
            if override.key_or_group:
                if reading is not text and not opens and "," in _PARTS.split(value):
                    raise _several(text)
                return override
    if opens:
        raise UserError(
            f"cannot read the override {text!r}: its value opens a list or a section. Quote the words in it that hold "
            f"brackets, commas or quotes, or the whole, where it is a text: '{key}=\"{value}\"'."
        )
    raise UserError(f"cannot read the override {text!r}: write key=value, as in train.lr=1e-6.")


def _several(text: str) -> UserError:
    return UserError(f"{text!r} gives several values: write a list as 'key=[a,b]', or quote a text: 'key=\"a,b\"'.")


# Quoted texts, what divides a list or a section, and the words between.
_PARTS = re.compile(r"""("(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[\[\]{},]|:(?=\s))""")


def _with_quoted_parts(value: str) -> str:
    """A list or a section whose words that Hydra's grammar cannot read are quoted."""
    return "".join(_PARTS.match(part) and part or _readable(part) for part in _PARTS.split(value))


def _of_json(value: str) -> str | None:
    """A list or a section of JSON in Hydra's grammar, whose keys are not quoted; None where it is no JSON."""

    def write(part: Any) -> str:
        if isinstance(part, dict):
            return f"{{{', '.join(f'{key}: {write(one)}' for key, one in part.items())}}}"
        if isinstance(part, list):
            return f"[{', '.join(map(write, part))}]"
        return _quoted(part) if isinstance(part, str) else json.dumps(part)

    try:
        return write(json.loads(value))
    except ValueError:
        return None


def _readable(word: str) -> str:
    try:
        OverridesParser.create().parse_override(f"key={word}")
    except HydraException:
        return _quoted(word.strip())
    return word


def _quoted(text: str) -> str:
    """Quote a text for Hydra's grammar, where a backslash counts only before a quote."""
    mark = "'" if '"' in text and "'" not in text else '"'
    escaped = re.sub(rf"(\\*){mark}", rf"\1\1\\{mark}", text)
    return mark + re.sub(r"(\\+)$", r"\1\1", escaped) + mark


def _choice(group: str, choice: Any, config_dir: Path) -> str:
    available = sorted(path.stem for path in (config_dir / group).glob("*.yaml"))
    if group == "model" and ("/" in str(choice) or Path(str(choice)).is_dir()) and str(choice) not in available:
        return "folder"
    if str(choice) not in available:
        raise UserError(f"{group} has no choice {str(choice)!r}; choose one of: {', '.join(available)}.")
    return str(choice)


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf below `value`; an empty mapping counts as a leaf, a list is one."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def is_free(key: str, free: Iterable[str]) -> bool:
    """Whether `key` or a section that holds it matches one of the patterns, so that any key may stand there."""
    return any(fnmatchcase(key, pattern) or fnmatchcase(key, f"{pattern}.*") for pattern in free)


def nearest(key: str, valid: Iterable[str]) -> str | None:
    """The valid dotted key that `key` most likely means: one with (nearly) the same last word; None: none is near."""
    by_word: dict[str, list[str]] = {}
    for candidate in valid:
        by_word.setdefault(candidate.rsplit(".", 1)[-1], []).append(candidate)
    if words := difflib.get_close_matches(key.rsplit(".", 1)[-1], by_word, n=1, cutoff=NEAR):
        return difflib.get_close_matches(key, by_word[words[0]], n=1, cutoff=0.0)[0]
    return next(iter(difflib.get_close_matches(key, sum(by_word.values(), []), n=1, cutoff=NEAR)), None)


def check(key: str, value: Any, reference: DictConfig, free: Iterable[str], prefix: str = "") -> Any:
    """Checks one leaf against `reference`, whose keys and types are valid, and returns the value to store.

    `prefix` stands before the key in messages (`verl.`). A key whose reference value is null, missing or cannot be
    worked out (an override may be what mends it) takes anything, and any key takes null, which in many places means
    "no limit" or "as the library decides". Raises UserError when the key does not exist there, or the value's basic
    type is another one.
    """
    if prefix + key in GONE:  # also where any key may stand
        raise UserError(f"unknown key {prefix}{key}; {GONE[prefix + key]}.")
    if is_free(key, free):
        return None
    node: Any = reference
    for part in key.split("."):
        if node is None:
            return None
        if not isinstance(node, DictConfig) or part not in node.keys():  # noqa: SIM118, `in` leaves out missing values
            known = [name for name, _ in leaves(OmegaConf.to_container(reference)) if not name.startswith("verl.")]
            near = (
                f"the nearest valid key is {prefix}{nearest_key}"
                if (nearest_key := nearest(key, known))
                else "none is near it"
            )
            raise Unknown(f"unknown key {prefix}{key}; {near}.", prefix + key)
        try:
            node = None if OmegaConf.is_missing(node, part) else node[part]
        except OmegaConfBaseException:
            node = None
    if expected := _mismatch(node, value):
        raise UserError(f"{prefix}{key} must be {expected}, not {value!r}.")
    return node


def _mismatch(reference: Any, value: Any) -> str | None:
    """Return what `value` should have been, or None when it fits."""
    if reference is None or value is None or (isinstance(value, str) and "${" in value):
        return None
    if isinstance(reference, DictConfig):
        return None if isinstance(value, Mapping) else "a section (its keys are set one by one)"
    if isinstance(reference, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(reference, int | float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number else "a number"
    if isinstance(reference, ListConfig) and not isinstance(value, list):
        return "a list: [a,b]"
    if isinstance(reference, str) and isinstance(value, Mapping):
        return "one value"
    return None


def apply(tree: dict[str, Any], values: Iterable[Value], reference: DictConfig, free: Iterable[str]) -> None:
    """Writes our own (not `verl.`) values into `tree`, in place, after checking all against `reference`, which has the
    values that stood there. Raises UserError as `check` does; also for a fraction in place of an int."""
    checked = []
    for item in values:
        refuse_forced(item, free)
        for key, value in leaves(item.value, item.key):
            old = check(key, value, reference, free)
            if isinstance(old, int) and not isinstance(old, bool) and isinstance(value, float):
                raise UserError(f"{key} must be a whole number, not {value!r}.")
            if isinstance(old, str) and isinstance(value, int | float) and not isinstance(value, bool):
                value = item.text  # name=007 stays 007
            checked.append((key, value))
    for key, value in checked:
        store(tree, key, value)


def refuse_forced(item: Value, free: Iterable[str], prefix: str = "") -> None:
    """Raises UserError for +key and ++key outside the sections that take any key."""
    if item.forced and not is_free(item.key, free):
        raise UserError(f"+{prefix}{item.key} would add a key that nothing reads; write an existing key without '+'.")


def store(tree: dict[str, Any], key: str, value: Any) -> None:
    """Sets one dotted key, replacing its old value. Raises UserError when the key is in a section that follows
    another one, all of which would be replaced."""
    *sections, last = key.split(".")
    for part in sections:
        inner = tree.get(part)
        if isinstance(inner, str) and "${" in inner:
            raise UserError(f"{key} lies in a section that follows {inner}: set it there.")
        if not isinstance(inner, dict):
            inner = tree[part] = {}
        tree = inner
    tree[last] = value
