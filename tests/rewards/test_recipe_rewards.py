"""Every recipe's reward against values worked out by hand from the papers' formulas."""

import json
import math

import pytest
from recipe_samples import sample, turn

from retool_mcore.errors import UserError
from retool_mcore.rewards.artist import artist
from retool_mcore.rewards.otc import (
    fewest_calls,
    otc_grpo,
    otc_ppo,
    tool_productivity,
    tool_reward_grpo,
    tool_reward_ppo,
)
from retool_mcore.rewards.outcome import retool, torl, zerotir
from retool_mcore.rewards.registry import ALIASES, find_reward
from retool_mcore.rewards.tool_calls import tool_n1

HALF_ROOT = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("reward", "right", "wrong"),
    [(retool, 1, -1), (torl, 1, -1), (zerotir, 1, 0), (find_reward("skyrl"), 1, 0)],
)
def test_outcome_rewards(reward, right, wrong):
    assert (reward(sample(acc=1.0)), reward(sample(acc=0.0))) == (right, wrong)


@pytest.mark.parametrize(
    ("calls", "acc", "value"),
    [([], 1.0, 1.0), (["error"], 1.0, 0.5), (["malformed"], 0.0, -1.5), (["error", "success"], 0.0, -1.0)],
)
def test_torl_punishes_only_when_no_execution_passed(calls, acc, value):
    assert torl(sample(acc=acc, calls=calls), executability=-0.5) == value


@pytest.mark.parametrize(
    ("m", "c", "value"),
    # cos(m pi / (2m + c)): m=0: cos 0; m=c: cos 60; m=1, c=2: cos 45; m=3, c=0+1: cos(3 pi / 7); m -> oo: cos 90
    [(0, 4, 1.0), (4, 4, 0.5), (1, 2, HALF_ROOT), (1, 1, 0.5), (3, 1, math.cos(3 * math.pi / 7)), (10**9, 1, 0.0)],
)
def test_otc_ppo(m, c, value):
    assert tool_reward_ppo(m, c) == pytest.approx(value, abs=1e-8)


def test_otc_ppo_rewards_right_answers_only():
    two_calls = ["success", "error"]
    assert otc_ppo(sample(calls=two_calls), max_calls=2, alpha=2.0) == pytest.approx(2 * 0.5)
    assert otc_ppo(sample(acc=0.0, calls=two_calls), max_calls=2) == 0.0


@pytest.mark.parametrize(
    ("m", "n", "c", "value"),
    [
        (0, 0, 4, 1.0),  # f = n = 0
        (4, 0, 4, 0.5),  # n = 0: cos(4 pi / 12)
        (2, 2, 4, 1.0),  # f = 2: sin(pi / 2)
        (3, 1, 4, HALF_ROOT),  # f = 6/4: sin(3 pi / 4)
        (2, 1, 4, math.sin(2 / 3 * math.pi)),  # f = 4/3
        (6, 2, 4, HALF_ROOT),  # f = 3: sin(3 pi / 4)
        (10**9, 1, 4, 0.0),  # f -> 2n: sin(pi)
    ],
)
def test_otc_grpo_tool_reward(m, n, c, value):
    assert tool_reward_grpo(m, n, c) == pytest.approx(value, abs=1e-8)


def test_otc_rewards_of_a_group_take_the_minimum_over_right_answers_of_all_epochs():
    accs, calls = [1.0, 1.0, 0.0, 1.0], [3, 1, 0, 2]
    expected = [HALF_ROOT, 1.0, 0.0, math.sin(2 / 3 * math.pi)]  # the wrong answer without calls is no minimum
    assert otc_grpo(accs, calls, fewest=None, max_calls=4) == pytest.approx(expected)
    assert otc_grpo(accs, calls, fewest=5, max_calls=4) == pytest.approx(expected)
    # An earlier epoch needed none: n = 0, cos(m pi / (2m + 4)).
    earlier = [math.cos(3 * math.pi / 10), math.cos(math.pi / 6), 0.0, math.cos(math.pi / 4)]
    assert otc_grpo(accs, calls, fewest=0, max_calls=4) == pytest.approx(earlier)
    assert otc_grpo([0.0, 0.0], [1, 2], fewest=None, max_calls=4) == [0.0, 0.0]
    assert (fewest_calls(accs, calls, None), fewest_calls([0.0], [0], None), fewest_calls([0.0], [0], 2)) == (
        1,
        None,
        2,
    )


def test_otc_productivity_and_limits():
    assert tool_productivity([1.0, 1.0, 0.0], [1, 3, 2]) == pytest.approx(2 / 6)
    assert tool_productivity([1.0], [0]) is None
    for bad in ((-1, 2), (1, 0)):
        with pytest.raises(ValueError, match="need calls"):
            tool_reward_ppo(*bad)
    with pytest.raises(ValueError, match="fewest"):
        tool_reward_grpo(1, -1, 2)


@pytest.mark.parametrize(
    ("case", "value"),
    [
        (sample(acc=1.0, calls=["success", "error"], turns=[turn(1), turn(boxed=True)]), 2 + 0.25 + 0.25 + 0.5),
        (sample(acc=0.0, calls=["success"], turns=[turn(1), turn()]), 0.25 + 1.0),
        (sample(acc=1.0, turns=[turn(boxed=True, fakes=1)]), 2 + 0.25),
        (sample(acc=0.0, calls=["malformed"], turns=[turn(), turn()]), 0.0),
    ],
)
def test_artist_adds_answer_format_and_tool_success(case, value):
    assert artist(case) == pytest.approx(value)


A = {"name": "weather", "arguments": {"city": "Bonn", "unit": "C"}}
B = {"name": "time", "arguments": {}}
THOUGHT = "<think>so</think>"


def calls_text(calls, thought=THOUGHT):
    return f"{thought}<tool_call>{json.dumps(calls)}</tool_call>"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (calls_text([A, B]), 1.0),
        (calls_text([B, A]), 1.0),  # a multiset
        (calls_text([B, {"arguments": {"unit": "C", "city": "Bonn"}, "name": "weather"}]), 1.0),  # keys in any order
        (calls_text([A]) + calls_text([B]), 1.0),  # all blocks count
        (calls_text([A]) + calls_text([A, B]), 0.0),
        (calls_text([A, B]) + calls_text([A]), 0.0),
        (calls_text([A, B]) + "<tool_call>[{]</tool_call>", 0.0),
        (calls_text([A, A, B]), 0.0),
        (calls_text([A]), 0.0),
        (calls_text([A, B], thought=""), 0.0),
        (calls_text([A, B]).replace("</tool_call>", ""), 0.0),
        (calls_text({"name": "time", "arguments": {}}), 0.0),  # not a list
        (calls_text([A, {"name": "time"}]), 0.0),
        (THOUGHT + "<tool_call>[{]</tool_call>", 0.0),
    ],
)
def test_tool_n1_is_exact_up_to_order(text, value):
    assert tool_n1(sample(text=text, ground_truth=json.dumps([A, B]))) == value


def test_tool_n1_tells_true_from_one_and_refuses_a_truth_that_is_none():
    truth = json.dumps([{"name": "f", "arguments": {"x": 1}}])
    assert tool_n1(sample(text=calls_text([{"name": "f", "arguments": {"x": True}}]), ground_truth=truth)) == 0.0
    with pytest.raises(UserError, match="JSON list"):
        tool_n1(sample(text=calls_text([A]), ground_truth="42"))


def test_rewards_are_found_by_name_or_path():
    assert all(callable(find_reward(name)) for name in ALIASES)
    assert find_reward("retool_mcore.rewards.outcome.zerotir") is zerotir
    for name, words in (("nope", "no reward is called"), ("a.b.c", "cannot be loaded"), ("math.pi", "not a function")):
        with pytest.raises(UserError, match=words):
            find_reward(name)
