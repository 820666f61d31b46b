"""ToolRL's correctness, worked out by hand from the paper's formula."""

import json
from fractions import Fraction

import pytest
from recipe_samples import sample

from retool_mcore.rewards.call_truth import read_truth
from retool_mcore.rewards.toolrl import correctness, jaccard, length_reward, match_score, scheduled_maxima, toolrl


def call(name, **arguments):
    return {"name": name, "arguments": arguments}


def right(calls):
    return read_truth(json.dumps(calls))


TRUTH = [call("weather", city="Bonn", unit="C"), call("time", zone="CET")]  # S_max = 1 + (1 + 2) + (1 + 1) = 6


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [("", "", 1), ("ab", "ba", 1), ("a", "b", 0), ("aab", "ab", Fraction(2, 3)), ("aa", "a", 0.5), ("a", "", 0)],
)
def test_multiset_jaccard(first, second, value):
    assert jaccard(first, second) == pytest.approx(float(value))
    assert jaccard(first, second, refined=True) == float(value == 1)


@pytest.mark.parametrize(
    ("predicted", "score"),
    [
        (TRUTH, 6),
        (TRUTH[::-1], 6),
        ([], 0),
        (TRUTH[:1], 0.5 + 3),  # names 1/2; keys 1, two values
        ([call("weather", city="Bonn"), call("time", zone="CET")], 1 + (0.5 + 1) + 2),
        ([call("weather", city="Rome", unit="F"), call("time", zone="UTC")], 1 + 1 + 1),
        ([call("weather", city="Rome"), *TRUTH], 2 / 3 + 3 + 2),  # the better of two of a name, whichever is first
        ([*TRUTH, call("weather", city="Rome")], 2 / 3 + 3 + 2),
        ([call("time", zone=True), call("weather", city="Bonn", unit="C")], 1 + 3 + 1),
        ([call("news", city="Bonn", unit="C")], 0),
    ],
)
def test_fine_grained_match(predicted, score):
    assert match_score(predicted, right(TRUTH).calls) == (pytest.approx(score), 6)
    assert correctness(predicted, right(TRUTH)) == pytest.approx(6 * score / 6 - 3)
    assert correctness(predicted, right(TRUTH), maximum=1.0) == pytest.approx(2 * score / 6 - 1)


def test_a_predicted_call_is_matched_once():
    truth = [call("f", x=1), call("f", x=1)]  # S_max = 1 + 2 + 2
    assert match_score([call("f", x=1)], right(truth).calls) == (0.5 + 2, 5)


@pytest.mark.parametrize(
    ("predicted", "intermediate", "coarse", "refined"),
    [
        (TRUTH, 3, 3, 3),
        # intermediate: S = 1 + 0 + 1 of 3; refined: S = 1 + (0 + 1) + (1 + 1) of 6
        ([call("weather", city="Bonn"), call("time", zone="CET")], 6 * 2 / 3 - 3, -3, 6 * 4 / 6 - 3),
        # intermediate: S = 1/2 + 1 of 3; refined: S = 0 + 3 of 6
        (TRUTH[:1], 6 * 1.5 / 3 - 3, -3, 6 * 3 / 6 - 3),
        (None, -3, -3, -3),
    ],
)
def test_variants_of_granularity(predicted, intermediate, coarse, refined):
    assert correctness(predicted, right(TRUTH), granularity="intermediate") == pytest.approx(intermediate)
    assert correctness(predicted, right(TRUTH), granularity="coarse") == coarse
    assert correctness(predicted, right(TRUTH), refined=True) == pytest.approx(refined)


@pytest.mark.parametrize(("step", "maxima"), [(0, (2, 2)), (75, (1.5, 2.5)), (150, (1, 3)), (900, (1, 3))])
def test_the_schedule_moves_weight_from_format_to_correctness(step, maxima):
    assert scheduled_maxima(step, 150) == maxima


def text(calls, thought="one two"):
    lines = "\n".join(json.dumps(c) for c in calls)
    return f"<think>{thought}</think>\n<tool_call>\n{lines}\n</tool_call>"


@pytest.mark.parametrize(
    ("written", "arguments", "reward"),
    [
        (text(TRUTH), {}, 4.0),
        (text(TRUTH), {"maximum": 1.0}, 2.0),
        (text(TRUTH), {"schedule_steps": 30}, 1.5 + 2.5),
        (text(TRUTH), {"with_length": True}, 4.0 + 2 / 512),
        (text([]), {}, 1.0 - 3.0),
        (text(TRUTH).replace("<think>", ""), {}, 0.0 - 3.0),
        (text(TRUTH).replace("}", "", 1), {}, 1.0 - 3.0),
        (text(TRUTH).replace('"arguments"', '"name": "f", "arguments"', 1), {}, 1.0 - 3.0),  # a key twice
        (text(TRUTH) + " and so on", {}, 0.0 - 3.0),
    ],
)
def test_the_whole_reward(written, arguments, reward):
    assert toolrl(sample(text=written, ground_truth=json.dumps(TRUTH), step=15), **arguments) == pytest.approx(reward)


def test_a_thought_of_any_length_is_worth_at_most_one():
    assert (length_reward(0), length_reward(256), length_reward(5000)) == (0, 0.5, 1)
