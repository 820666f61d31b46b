"""Does a recipe fit together, and can this version run it? Its ranges: config/schema.py. Imports no torch."""

import inspect
from collections.abc import Mapping

from retool_mcore.errors import UserError, describe
from retool_mcore.recipes.sample_filters import FILTERS
from retool_mcore.rewards.registry import find_reward
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
        check_group_reward(recipe["group_reward"])
    check_filters(recipe)


def check_arguments(key: str, section: Mapping, given: int, **keywords) -> None:
    """Refuse `section.args` that the function `section.name` does not take beside `given` positions and `keywords`."""
    function = find_reward(section["name"])
    try:
        inspect.signature(function).bind(*[None] * given, **keywords, **section["args"])
    except TypeError as error:
        raise UserError(f"recipe.{key}.args do not fit {section['name']}: {error}.") from error


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
