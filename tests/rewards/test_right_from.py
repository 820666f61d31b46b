"""Which trajectories count as right: by their answer, or from a reward on."""

import own_rewards
import pytest
from recipe_samples import sample

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.rewards.registry import needs_answer
from retool_mcore.rewards.scoring import right_from, score_or_crash

PLAN = "recipe.reward.name=own_rewards.plan"


def scored(*overrides, truth="", text="a plan", **known):
    return score_or_crash(
        sample(acc=0.0, ground_truth=truth, text=text, policy_text=text, **known), compose("rl", overrides).recipe
    )


@pytest.mark.parametrize(
    ("least", "reward", "right"), [(0.5, 0.5, 1.0), (0.5, 0.49, 0.0), (0, -0.1, 0.0), (-1, -1, 1.0)]
)
def test_a_reward_of_at_least_so_much_is_right(least, reward, right):
    found = scored(PLAN, f"recipe.reward.args.worth={reward}", f"recipe.right_from={least}")
    assert (found.reward, found.acc, found.graded_by, found.error) == (reward, right, "", "")


def test_the_reward_sees_the_verdict_of_the_answer_where_there_is_one():
    """Partial credit for a wrong answer in the right format; from 1 on it is right."""
    given = ("recipe.reward.name=own_rewards.partial", "recipe.right_from=1")
    right, wrong = (scored(*given, truth="42", text=f"\\boxed{{{n}}}") for n in (42, 41))
    assert (right.reward, right.acc, right.pred) == (1.0, 1.0, "42")
    assert (wrong.reward, wrong.acc, wrong.pred) == (0.25, 0.0, "41")
    assert scored(*given, "recipe.right_from=0.25", truth="42", text="\\boxed{41}").acc == 1.0
    assert scored(*given, text="\\boxed{7}").pred == "7", "what is voted on is read without a truth, too"


def test_an_environments_default_is_one():
    assert right_from(compose("rl", ["recipe.answer=environment"]).recipe) == 1.0
    assert right_from(compose("rl", ["recipe.answer=environment", "recipe.right_from=0.5"]).recipe) == 0.5
    assert right_from(compose("rl", []).recipe) is None
    half = ("recipe.answer=environment", PLAN, "recipe.reward.args.worth=0.5")
    assert scored(*half).acc == 0.0 and scored(*half, "recipe.right_from=0.5").acc == 1.0


def test_what_raises_is_wrong_whatever_is_right():
    found = scored("recipe.reward.name=own_rewards.raises", "recipe.right_from=-5", truth="1")
    assert (found.acc, found.reward, found.graded_by) == (0.0, 0.0, "crashed") and "ZeroDivision" in found.error


def test_a_missing_truth_without_a_reward_to_go_by_stops_the_run():
    with pytest.raises(UserError, match="ground_truth"):
        scored()


def test_which_rewards_need_an_answer():
    assert not needs_answer("environment") and not needs_answer("own_rewards.plan")
    assert needs_answer("retool") and needs_answer("own_rewards.raises")
    assert own_rewards.plan.needs_answer is False
