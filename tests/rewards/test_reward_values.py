"""What a reward function of the user's own may return, and what becomes of everything else."""

import inspect
import math

import numpy as np
import own_rewards
import pytest
from recipe_samples import call, turn

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.recipes.check import check_group_reward
from retool_mcore.recipes.outcome import compute_score
from retool_mcore.rollout.trajectory import Span, Trajectory
from retool_mcore.rollout.wire import to_wire


def scored(function, answer="\\boxed{42}", buffer=0, row=None, **args):
    recipe = compose("rl", ["recipe=retool"]).recipe
    recipe["overlong_buffer"] = buffer
    recipe["reward"] = {"name": f"own_rewards.{function}", "args": args}
    record = Trajectory([1], [1, 2], [1, 1], [], [Span("policy", 0, 2)], [call("success")], 1, "answer", 0.0, 0.0)
    record.turn_notes = [turn(programs=1, boxed=True)]
    extra = {"trajectory": to_wire(record.to_record()), "policy_text": answer}
    extra |= {"response_length": 2, "training_step": 1} | (row or {})
    return compute_score("x", answer, "42", extra, recipe=recipe, max_response_tokens=100)


@pytest.mark.parametrize("case", own_rewards.GOOD)
def test_a_finite_number_of_any_type_is_the_reward(case):
    found = scored("good", case=case)
    assert found["score"] == 1.0 and type(found["score"]) is float
    assert (found["acc"], found["error"]) == (1.0, "") and found["graded_by"] != "crashed"


def test_a_reward_sees_its_row():
    row = {"index": 17, "split": "train", "question": "What is 6 * 7?", "row": '{"level": 3, "tests": ["a"]}'}
    assert scored("sees_row", row=row)["score"] == 1.0
    assert scored("sees_row", row=row | {"row": None})["score"] == 0.0


@pytest.mark.parametrize("case", own_rewards.BAD)
def test_what_is_no_finite_number_is_named_and_counted_like_what_raises(case):
    found = scored("bad", case=case)
    assert (found["score"], found["acc"], found["graded_by"]) == (0.0, 0.0, "crashed")
    assert "the reward own_rewards.bad returned " in found["error"] and "expected a finite number" in found["error"]
    assert "(own_rewards.py, line " in found["error"] and found["error"].endswith("in bad)")


@pytest.mark.filterwarnings("ignore:coroutine")
def test_an_error_names_its_function_file_and_line():
    line = inspect.getsourcelines(own_rewards.raises)[1] + 1
    assert (
        scored("raises")["error"]
        == f"ZeroDivisionError: float division by zero (own_rewards.py, line {line}, in raises)"
    )
    assert "returned <coroutine object coroutine" in scored("coroutine")["error"]
    long = scored("good", case="an int", buffer=200)  # of 100 tokens: what a configuration may not hold
    assert "need 0 < cache <= max_length" in long["error"] and "in soft_overlong" in long["error"]
    assert (long["score"], long["overlong"]) == (0.0, 0.0)


def test_a_reward_that_fails_for_some_is_the_reward_of_the_others():
    assert scored("sometimes")["score"] == 1.0
    assert (scored("sometimes", answer="no")["score"], scored("sometimes", answer="no")["graded_by"]) == (
        0.0,
        "crashed",
    )


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (lambda accs, calls, fewest: [np.float32(a) for a in accs], None),
        (lambda accs, calls, fewest: np.array(accs), None),
        (lambda accs, calls, fewest: [math.nan] * len(accs), "returned nan"),
        (lambda accs, calls, fewest: accs[:1], "returned 1 rewards for a group of two"),
        (lambda accs, calls, fewest: 1.0, "TypeError"),
        (lambda accs, calls, fewest: [1 / 0 for _ in accs], "division by zero"),
    ],
)
def test_a_group_reward_that_fails_is_refused_before_the_start(monkeypatch, group, words):
    monkeypatch.setattr(own_rewards, "group", group, raising=False)
    recipe = compose("rl", ["recipe=otc"]).recipe
    recipe["group_reward"] = {"name": "own_rewards.group", "args": {}}
    from retool_mcore.rewards.registry import find_reward

    find_reward.cache_clear()
    if words is None:
        check_group_reward(recipe["group_reward"])
        return
    with pytest.raises(UserError, match=words):
        check_group_reward(recipe["group_reward"])
    find_reward.cache_clear()
