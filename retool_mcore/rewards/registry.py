"""Rewards by the name that a recipe's configuration gives: a short name of ours, or a dotted path to the user's own."""

import functools
import importlib
from collections.abc import Callable

from retool_mcore.errors import UserError

_MODULES = {
    "outcome": "retool torl zerotir environment", "artist": "artist", "tool_calls": "tool_n1", "toolrl": "toolrl",
    "otc": "otc_ppo otc_grpo", "official": "reasoning_gym bfcl human_eval",
}  # fmt: skip
ALIASES = {name: f"retool_mcore.rewards.{file}.{name}" for file, names in _MODULES.items() for name in names.split()}
ALIASES["skyrl"] = ALIASES["zerotir"]


@functools.cache
def find_reward(name: str) -> Callable:
    """The function called `name`, a key of SHORT or a dotted path.

    A reward takes a `Sample`, and its parameters by keyword, and returns a float. Raises UserError for another name.
    """
    path = ALIASES.get(name, name)
    module, _, function = path.rpartition(".")
    if not module:
        raise UserError(f"no reward is called {name!r}: give one of {', '.join(ALIASES)}, or a dotted path.")
    try:
        reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the reward {name} cannot be loaded ({error}): give package.module.function.") from error
    if not callable(reward):
        raise UserError(f"the reward {name} is not a function.")
    return reward


def needs_answer(name: str) -> bool:
    """Return whether the reward compares with the row's answer: False where its function's `needs_answer` is False."""
    return bool(getattr(find_reward(name), "needs_answer", True))


def find_check(name: str) -> Callable[..., None] | None:
    """The function `check_NAME` next to the reward NAME in its module, which says what the reward needs; None: there is
    none.

    It takes the stage's whole configuration (plain), and by keyword the arguments that the recipe gives the reward. It
    raises UserError, with one sentence, for what the reward could not be used with. Raises UserError as `find_reward`.
    """
    reward = find_reward(name)
    module, _, function = ALIASES.get(name, name).rpartition(".")
    check = getattr(importlib.import_module(module), f"check_{function}", None)
    return check if callable(check) and callable(reward) else None
