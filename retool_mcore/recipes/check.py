"""Does a recipe fit together, and can this version run it? Checked before an engine starts; imports no torch."""

import inspect
from collections.abc import Mapping

from retool_mcore.errors import UserError
from retool_mcore.recipes.sample_filters import FILTERS
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.verdict import ANSWERS, DECIMALS

ADVANTAGES = ("grpo", "rloo", "reinforce_plus_plus_baseline", "gae")
AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def check_recipe(recipe: Mapping, *, max_turns: int) -> None:
    """Refuse what cannot run or would quietly run as something else. Raises UserError with one sentence.

    recipe: the section `recipe`; max_turns: calls in one trajectory.
    """
    if recipe["needs"]:
        raise UserError(
            f"recipe={recipe['name']} needs {recipe['needs']}; this version has none: choose another recipe."
        )
    _one_of("recipe.advantage", recipe["advantage"], ADVANTAGES)
    _one_of("recipe.loss_aggregation", recipe["loss_aggregation"], AGGREGATIONS)
    _one_of("recipe.answer", recipe["answer"], ANSWERS)
    _one_of("recipe.decimals", recipe["decimals"], DECIMALS)
    group_reward = recipe["group_reward"]["name"]
    check_arguments("reward", recipe["reward"], given=1)
    if group_reward:
        check_arguments("group_reward", recipe["group_reward"], given=2, fewest=None)
    if max_turns == 0 and any(name in ("otc_ppo", "otc_grpo") for name in (recipe["reward"]["name"], group_reward)):
        raise UserError("rollout.max_turns=0: OTC rewards few calls, so it needs at least one that may be made.")
    check_filters(recipe)


def check_arguments(key: str, section: Mapping, given: int, **keywords) -> None:
    """Refuse `section.args` that the function `section.name` does not take beside `given` positions and `keywords`."""
    function = find_reward(section["name"])
    try:
        inspect.signature(function).bind(*[None] * given, **keywords, **section["args"])
    except TypeError as error:
        raise UserError(f"recipe.{key}.args do not fit {section['name']}: {error}.") from error


def check_filters(recipe: Mapping) -> None:
    filters, alpha = recipe["filters"], recipe["observation_weight"]
    for name in filters["samples"]:
        _one_of("recipe.filters.samples", name, FILTERS)
    if filters["accuracy"] is not None:
        bounds = list(filters["accuracy"])
        if len(bounds) != 2 or not 0 <= bounds[0] < bounds[1] <= 1:
            raise UserError(f"recipe.filters.accuracy={bounds}: expected [low, high] with 0 <= low < high <= 1.")
    n = filters["repetition"]["n"]
    if n < 1 or n & (n - 1):
        raise UserError(f"recipe.filters.repetition.n={n}: expected a power of two.")
    if filters["refill_limit"] < 1:
        raise UserError(f"recipe.filters.refill_limit={filters['refill_limit']}: expected 1 or more.")
    if alpha < 0:
        raise UserError(f"recipe.observation_weight={alpha}: expected 0 or more.")
    needs_ours = [
        name
        for name, used in (("filters.samples", bool(filters["samples"])), ("observation_weight", alpha > 0))
        if used
    ]
    if not needs_ours:
        return
    if recipe["policy_loss"] != "retool":
        raise UserError(f"recipe.{needs_ours[0]} needs recipe.policy_loss=retool, not {recipe['policy_loss']}.")
    if recipe["loss_aggregation"] != "token-mean":
        raise UserError(
            f"recipe.{needs_ours[0]} needs recipe.loss_aggregation=token-mean, not {recipe['loss_aggregation']}: the "
            "mean over sequences divides by the whole mini-batch, left-out samples included."
        )


def _one_of(key: str, value: str, choices) -> None:
    if value not in choices:
        raise UserError(f"{key}: {value!r} is not known; choose from {', '.join(choices)}.")
