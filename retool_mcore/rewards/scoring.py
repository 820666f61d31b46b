"""The reward of one trajectory, and whether it counts as right: the same in RL, its validation and `retool eval`."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from omegaconf import OmegaConf

from retool_mcore.errors import UserError, describe
from retool_mcore.rewards.registry import find_reward
from retool_mcore.rewards.sample import Sample
from retool_mcore.rewards.value import number
from retool_mcore.rewards.verdict import CRASHED, ENVIRONMENT, verdict


class Scored(NamedTuple):
    """The result of scoring.

    sample: with the final verdict as `acc`; reward: finite; pred: the answer that was read, "" without one; graded_by:
    the rule that decided (`rewards/math.py::score`), "" where nothing was compared, "crashed" where scoring raised;
    error: what it raised and where, "" where it did not.
    """

    sample: Sample
    reward: float
    pred: str
    graded_by: str
    error: str = ""

    @property
    def acc(self) -> float:
        """1.0 or 0.0: whether the trajectory counts as right."""
        return self.sample.acc


def right_from(recipe: Mapping) -> float | None:
    """Return the reward from which on a trajectory counts as right; None: its answer, or its tests, decide.

    `recipe` is the section of the configuration. An environment compares no answer: there it is 1 by default. So does a
    reward whose function has an attribute `right_from`.
    """
    least = recipe.get("right_from")
    if least is not None:
        return least
    return (
        1.0 if recipe["answer"] == ENVIRONMENT else getattr(find_reward(recipe["reward"]["name"]), "right_from", None)
    )


def score(sample: Sample, recipe: Mapping, tested: float | None = None) -> Scored:
    """Return the recipe's reward of a trajectory and its verdict.

    The reward sees the verdict of the answer as `sample.acc`, 0.0 where there is none to compare; with a reward from
    which on a trajectory is right, the final verdict follows the reward. tested: as `verdict` takes it. Raises
    UserError for what makes the run itself wrong, and whatever the reward raises.
    """
    least, tests = right_from(recipe), 0.0 if recipe["answer"] == ENVIRONMENT else tested
    judged = verdict(
        policy_text=sample.policy_text,
        text=sample.text,
        ground_truth=sample.ground_truth,
        policy=recipe["answer"],
        decimals=recipe["decimals"],
        tested=tests,
        compared=least is None or bool(sample.ground_truth),
        question=sample.question if recipe.get("copied_answers") == "wrong" else "",
    )
    graded = replace(sample, acc=judged["acc"], pred=judged["pred"])
    reward = reward_of(graded, recipe)
    if least is not None:
        graded = replace(graded, acc=float(reward >= least))
    return Scored(graded, reward, judged["pred"], judged["graded_by"])


def crashed(sample: Sample, recipe: Mapping, raised: Exception) -> Scored:
    """Return what a trajectory comes to whose scoring raised: wrong, and worth what an empty one is, at most 0.

    Were its group replaced, as verl does, a policy could void what it does badly.
    """
    nothing = replace(sample, acc=0.0, text="", policy_text="", prefill="", ids=[], policy_spans=[], turns=[], calls=[])
    try:
        reward = min(reward_of(nothing, recipe), 0.0)
    except Exception:
        reward = 0.0
    return Scored(replace(sample, acc=0.0), reward, "", CRASHED, describe(raised))


def reward_of(sample: Sample, recipe: Mapping) -> float:
    """Return the recipe's reward. Raises ValueError where the function returns no finite number."""
    name, function = recipe["reward"]["name"], find_reward(recipe["reward"]["name"])
    returned = function(sample, **to_dict(recipe["reward"]["args"]))
    try:
        return number(returned, f"the reward {name}")
    except ValueError as error:
        code = getattr(inspect.unwrap(function), "__code__", None)
        place = f'File "{code.co_filename}", line {code.co_firstlineno}, in {code.co_name}' if code else ""
        error.traceback_str = place  # type: ignore[attr-defined]  # `describe` names the function, not this check
        raise


def score_or_crash(sample: Sample, recipe: Mapping, tested: float | None = None) -> Scored:
    """Return `score`, or `crashed` where that raises anything but UserError."""
    try:
        return score(sample, recipe, tested)
    except UserError:
        raise
    except Exception as raised:
        return crashed(sample, recipe, raised)


def to_dict(section: Mapping) -> dict:
    """Keyword arguments from a section of the configuration, which in the workers is OmegaConf's."""
    return OmegaConf.to_container(section) if OmegaConf.is_config(section) else dict(section)
