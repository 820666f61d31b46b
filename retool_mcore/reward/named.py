"""Rewards by the name that a recipe's configuration gives: a short name of ours, or a dotted path to the user's own."""

import functools
import importlib
from collections.abc import Callable

from retool_mcore.errors import UserError

SHORT = {
    "retool": "retool_mcore.reward.outcome.retool",
    "torl": "retool_mcore.reward.outcome.torl",
    "zerotir": "retool_mcore.reward.outcome.zerotir",
    "skyrl": "retool_mcore.reward.outcome.skyrl",
    "artist": "retool_mcore.reward.artist.artist",
    "tool_n1": "retool_mcore.reward.tool_calls.tool_n1",
    "toolrl": "retool_mcore.reward.toolrl.toolrl",
    "otc_ppo": "retool_mcore.reward.otc.otc_ppo",
    "otc_grpo": "retool_mcore.reward.otc.otc_grpo",
}


@functools.cache
def find_reward(name: str) -> Callable:
    """The function called `name`, a key of SHORT or a dotted path.

    A reward takes a `Sample`, and its parameters by keyword, and returns a float. Raises UserError for another name.
    """
    path = SHORT.get(name, name)
    module, _, function = path.rpartition(".")
    if not module:
        raise UserError(f"no reward is called {name!r}: give one of {', '.join(SHORT)}, or a dotted path.")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the reward {name} cannot be loaded ({error}): give package.module.function.") from error
    if not callable(found):
        raise UserError(f"the reward {name} is not a function.")
    return found
