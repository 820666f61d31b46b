"""Does a recipe fit together, and can this version run it? Its ranges: config/models/recipe.py. Imports no torch."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from omegaconf import OmegaConf
from pydantic import PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeAdapter, ValidationError

from retool_mcore.errors import UserError, describe
from retool_mcore.recipes.sample_filters import FILTERS
from retool_mcore.rewards.registry import find_check, find_reward
from retool_mcore.rewards.shaping import check_overlong
from retool_mcore.rewards.value import number


def check_recipe(recipe: Mapping) -> None:
    """Refuse a section `recipe` that cannot run or would quietly run as something else. Raises UserError."""
    if recipe["needs"]:
        raise UserError(
            f"recipe={recipe['name']} needs {recipe['needs']}; this version has none: choose another recipe."
        )
    group_reward = recipe["group_reward"]["name"]
    check_arguments("reward", recipe["reward"], given=1)
    if group_reward:
        check_arguments("group_reward", recipe["group_reward"], given=2, fewest=None)
    check_filters(recipe)


def check_rewards(config: Mapping) -> None:
    """Refuse what a reward or a filter would only meet at its first trajectory. Raises UserError.

    `config` is the stage's whole configuration, plain. A reward says what it needs in its own check
    (rewards/registry.py, find_check).
    """
    recipe, n = config["recipe"], config["train"]["n"]
    for key in ("reward", "group_reward"):
        if recipe[key]["name"]:
            check_needs(config, key)
    if recipe["group_reward"]["name"]:  # once its owner finds nothing wrong
        check_group_reward(recipe["group_reward"])
    check_overlong(recipe["overlong_buffer"], config["rollout"]["max_response_tokens"])
    bounds = recipe["filters"]["accuracy"]
    if bounds is not None and not any(bounds[0] < right / n < bounds[1] for right in range(n + 1)):
        raise UserError(
            f"recipe.filters.accuracy={bounds} lets no group of train.n={n} trajectories pass: none of its accuracies, "
            f"multiples of 1/{n}, lies between the two. Widen it, or raise train.n."
        )


def check_needs(config: Mapping, key: str = "reward") -> None:
    """Ask the reward under recipe.KEY for what it needs of a configuration, plain. Raises UserError."""
    section = config["recipe"][key]
    if check := find_check(section["name"]):
        _run(check, f"recipe.{key}.name={section['name']}", config, section["args"])


def _run(check: Callable[..., None], what: str, config: Mapping, args: Mapping) -> None:
    try:
        check(config, **args)
    except UserError:
        raise
    except Exception as error:  # the user's own function
        name = f"{check.__module__}.{check.__qualname__}"
        reason = f"{type(error).__name__}: {error}".rstrip(": .")
        raise UserError(f"{what}: {name}, which says what it needs, raised {reason}.") from error


def check_arguments(key: str, section: Mapping, given: int, **keywords) -> None:
    """Refuse `section.args` that the function `section.name` does not take with `given` positions and `keywords`."""
    function = find_reward(section["name"])
    try:
        inspect.signature(function).bind(*[None] * given, **keywords, **section["args"])
    except TypeError as error:
        raise UserError(f"recipe.{key}.args do not fit {section['name']}: {error}.") from error
    hints = _hints(function)
    for name, value in section["args"].items():
        if name in hints and (expected := _misfit(hints[name], value)):
            raise UserError(f"recipe.{key}.args.{name}={value}: it {expected}.")


def _hints(function: Callable) -> dict[str, Any]:
    """Types of the parameters; {} where they cannot be worked out."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}


def _misfit(kind: Any, value: Any) -> str:
    """Return what a value of YAML should be, "" where it is that, or where this cannot be known."""
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    try:
        TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, TypeError):
        return ""
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Input ")
    return ""


def check_group_reward(section: Mapping) -> None:
    """Refuse a group reward that fails for a right answer of one call and a wrong one of two: it would fail behind a
    whole generation phase. Raises UserError."""
    name = section["name"]
    try:
        rewards = find_reward(name)([1.0, 0.0], [1, 2], fewest=None, **section["args"])
        values = [number(value, f"the group reward {name}") for value in rewards]
    except Exception as error:
        raise UserError(f"recipe.group_reward.name={name} fails for a group of two: {describe(error)}.") from error
    if len(values) != 2:
        raise UserError(f"recipe.group_reward.name={name} returned {len(values)} rewards for a group of two.")


def check_filters(recipe: Mapping) -> None:
    filters, alpha = recipe["filters"], recipe["observation_weight"]
    for name in filters["samples"]:
        if name not in FILTERS:
            raise UserError(f"recipe.filters.samples: {name!r} is not known; choose from {', '.join(FILTERS)}.")
    needs_ours = "filters.samples" if filters["samples"] else "observation_weight" if alpha > 0 else None
    if needs_ours is None:
        return
    if recipe["policy_loss"] != "retool":
        raise UserError(f"recipe.{needs_ours} needs recipe.policy_loss=retool, not {recipe['policy_loss']}.")
    if recipe["loss_aggregation"] != "token-mean":
        raise UserError(
            f"recipe.{needs_ours} needs recipe.loss_aggregation=token-mean, not {recipe['loss_aggregation']}: the "
            "mean over sequences divides by the whole mini-batch, left-out samples included."
        )
