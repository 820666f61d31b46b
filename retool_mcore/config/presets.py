"""The presets of configs/GROUP/NAME.yaml: plain values over the defaults of the typed classes.

`defaults` of a preset names those of its group whose values come first, and choices of other groups that suit it:
`defaults: [1gpu]`, `defaults: [{toolbox: replay}]`.
"""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic.fields import FieldInfo
from yaml import YAMLError

from retool_mcore.config import overrides as ov
from retool_mcore.config.defaults import Default
from retool_mcore.config.models import PreparedRecipe, Recipe, Stage
from retool_mcore.config.models.section import Section, defaults, is_open, key_of, section_of
from retool_mcore.errors import UserError


def tree_of(kind: type[Stage], choices: Mapping[str, str], config_dir: Path) -> dict[str, Any]:
    """The tree of a stage: its classes' defaults, and over them the presets that `choices`, a preset of another group
    or the stage names, in this order of precedence. Raises UserError."""
    groups = kind.groups
    if unused := [group for group in choices if group not in groups]:
        stage = kind.__name__.lower()
        message = f"the stage {stage} has no group {unused[0]}; its groups are: {', '.join(sorted(groups))}."
        raise ov.Unknown(message, unused[0])
    chosen = {group: choices.get(group, name) for group, name in groups.items()}
    for _, suited in read(config_dir, "data", chosen["data"]):
        chosen |= {group: name for group, name in suited.items() if group in groups and group not in choices}
    tree = defaults(kind)
    sections = {key_of(name, field): section_of(field) for name, field in kind.model_fields.items()}
    for group, name in chosen.items():
        for values, _ in read(config_dir, group, name):
            lay(sections[group], tree[group], values, group)
    return tree


def read(config_dir: Path, group: str, name: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """(values, choices of other groups) of a preset and, before it, of those that it starts from."""
    path = config_dir / group / f"{name}.yaml"
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from error
    assert isinstance(values, dict)
    suited: dict[str, str] = {}
    for entry in values.pop("defaults", []):
        if isinstance(entry, Mapping):
            suited |= entry
        elif entry != "_self_" and not entry.startswith("/"):
            yield from read(config_dir, group, entry)
    yield values, suited


def lay(kind: type[Section], tree: dict[str, Any], values: Mapping[str, Any], where: str) -> None:
    """Lay a preset's `values` over `tree`, in place. A null leaves a default that depends on other keys. Raises
    UserError for a key that the class does not have."""
    fields = {key_of(name, field): field for name, field in kind.model_fields.items()}
    for key, value in values.items():
        if (field := fields.get(key)) is None and not is_open(kind):
            if issubclass(kind, PreparedRecipe) and key in _RECIPE:
                continue  # a recipe's key that only `retool rl` has
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.0)
            raise UserError(f"unknown key {where}.{key} in a preset; the nearest valid key is {where}.{near[0]}.")
        inner = section_of(field) if field else None
        if inner and isinstance(value, Mapping):
            lay(inner, tree.setdefault(key, defaults(inner)), value, f"{where}.{key}")
        elif field is not None:
            tree[key] = _over(field, tree.get(key), kind.of_preset(key, value))
        else:
            tree[key] = _merged(tree.get(key), value)


_RECIPE = {key_of(name, field) for name, field in Recipe.model_fields.items()}


def _over(field: FieldInfo, before: Any, value: Any) -> Any:
    default = field.default
    if isinstance(default, Default) and value is None:
        return default
    if isinstance(default, Default) and default.stands_in and not isinstance(value, str | Default):
        return default.with_alternative(value)
    return _merged(before, value)


def _merged(before: Any, value: Any) -> Any:
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return dict(before) | {key: _merged(before.get(key), entry) for key, entry in value.items()}
    return value
