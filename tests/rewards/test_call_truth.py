"""Ground truths of function calls: every accepted value, by the parameter's declared type."""

import json
import time

import pytest
from recipe_samples import sample

from retool_mcore.errors import UserError
from retool_mcore.rewards.call_truth import ANY, accepts, loose_text, read_truth
from retool_mcore.rewards.tool_calls import judge, tool_n1
from retool_mcore.rewards.toolrl import toolrl

TYPES = {"base": "integer", "height": "float", "unit": "string", "sides": "array[integer]"}
ACCEPTED = {"base": [10], "height": [5, 5.5], "unit": ["", "square units"], "sides": ["", [1, 2]]}
WANTED = {"name": "area", "accepted": ACCEPTED, "types": TYPES, "required": ["base", "height"]}
LEAST = {"base": 10, "height": 5}


def text(*calls):
    return "<think>t</think><tool_call>" + "\n".join(json.dumps(call) for call in calls) + "</tool_call>"


def acc(truth, *calls):
    return judge(text(*calls), json.dumps(truth))["acc"]


def area(**arguments):
    return {"name": "area", "arguments": arguments}


@pytest.mark.parametrize(
    "arguments",
    [
        LEAST,
        LEAST | {"height": 5.0},
        LEAST | {"height": 5.5},
        LEAST | {"unit": "square units"},
        LEAST | {"unit": ""},
        LEAST | {"sides": [1, 2], "unit": "square units"},
        LEAST | {"sides": []},
    ],
)
def test_every_accepted_value_is_right_and_optional_ones_may_be_left_out(arguments):
    assert acc([WANTED], area(**arguments)) == 1.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"base": 10},
        {"height": 5},
        LEAST | {"base": 11},
        LEAST | {"base": 10.0},  # an integer is asked for
        LEAST | {"base": "10"},
        LEAST | {"base": True},
        LEAST | {"height": "5"},
        LEAST | {"height": 6},
        LEAST | {"unit": "Square Units"},  # exact texts
        LEAST | {"unit": None},
        LEAST | {"sides": [2, 1]},
        LEAST | {"sides": [1, 2, 3]},
        LEAST | {"sides": ["1", "2"]},
        LEAST | {"colour": "red"},
    ],
)
def test_other_values_and_further_arguments_are_wrong(arguments):
    assert acc([WANTED], area(**arguments)) == 0.0


def test_loose_texts_leave_out_what_the_leaderboard_does():
    assert loose_text("Square-Units, (1.5*x^2)/'a_b'") == 'squareunits(15x2)"ab"'
    loose = WANTED | {"texts": "loose"}
    for unit in ("Square Units", "square-units", "SQUAREUNITS."):
        assert acc([loose], area(**LEAST, unit=unit)) == 1.0 and acc([WANTED], area(**LEAST, unit=unit)) == 0.0
    assert acc([loose], area(**LEAST, unit="square unit")) == 0.0
    assert acc([loose], area(base="1.0", height=5)) == 0.0
    plain = [{"name": "f", "arguments": {"a": {"b": ["New York"]}}}]
    given = {"name": "f", "arguments": {"a": {"b": ["new-york"]}}}
    assert acc([plain[0] | {"texts": "loose"}], given) == 1.0 and acc(plain, given) == 0.0


@pytest.mark.parametrize(
    ("options", "value", "declared", "right"),
    [
        ([None, ""], None, "string", True),
        ([2.5], 2.5, "number", True),
        ([3], 3.0, "", True),  # no declared type: as JSON
        ([3], "3", "", False),
        ([""], "", "", False),
        (["all"], "all", "integer", True),  # the answers are of another type than the description
        (["all"], 3, "integer", False),
        ([[1.0, 2.0]], [1, 2], "array[float]", False),
        ([[1.0, 2.0]], [1.0, 2.0], "array[float]", True),
        ([[1, 2]], [1, 2], "array[float]", True),
        ([["a", "b"]], ["a", "b"], "array[string]", True),
        ([["a", "b"]], ["a", 1], "array[string]", False),
        ([["a"]], "a", "array[string]", False),
        ([{"lat": [1.5], "unit": ["", "m"]}], {"lat": 1.5}, "dict", True),
        ([{"lat": [1.5], "unit": ["", "m"]}], {"lat": 1.5, "unit": "m"}, "dict", True),
        ([{"lat": [1.5], "unit": ["", "m"]}], {"unit": "m"}, "dict", False),
        ([{"lat": [1.5], "unit": ["", "m"]}], {"lat": 1.5, "x": 1}, "dict", False),
        ([[{"a": [1]}, {"a": [2]}]], [{"a": 1}, {"a": 2}], "array[dict]", True),
        ([[{"a": [1]}, {"a": [2]}]], [{"a": 2}, {"a": 1}], "array[dict]", False),
        ([[{"a": [1]}]], [1], "array[dict]", False),
        ([True], True, "boolean", True),
        ([True], 1, "boolean", False),
        ([1.5], 10**400, "float", False),
        ([], "x", "string", False),
        ([5], "5L", "java:long", True),
        ([5], "5", "java:long", False),
        ([5], 5, "java:long", False),
        ([0.5], "0.5", "java:double", True),
        ([0.5], "0.5f", "java:float", True),
        ([True], "true", "java:boolean", True),
        (["a"], "a", "java:String", True),
        ([[1, 2]], "new ArrayList<Integer>(Arrays.asList(1, 2))", "java:ArrayList[integer]", True),
        ([[1, 2]], "new ArrayList<Integer>() {{ add(1); add(2); }}", "java:ArrayList[integer]", True),
        ([[1, 2]], "new int[]{1, 2}", "java:Array[integer]", True),
        ([[1, 2]], "[1, 2]", "java:Array[integer]", False),
        ([{"a": [1], "b": ["c"]}], 'new HashMap<A, B>() {{ put("a", 1); put("b", "c"); }}', "java:HashMap", True),
        ([{}], "new HashMap<String, Object>()", "java:HashMap", True),
        (["rows"], "rows", "java:HashMap", True),
        ([[1]], "1", "java:Set", False),
        ([12], "12n", "javascript:Bigint", True),
        (["a"], "'a'", "javascript:String", True),
        ([["a", "b"]], "['a', \"b\"]", "javascript:array[String]", True),
        ([[[1, 2], [3]]], "[[1, 2], [3]]", "javascript:array[array]", True),
        ([{"a": [1], "b": [[1, 2]]}], "{'a': 1, b: [1, 2]}", "javascript:dict", True),
        ([[]], "[]", "javascript:array[String]", True),
    ],
)  # fmt: skip
def test_values_compare_by_the_declared_type(options, value, declared, right):
    assert accepts(options, value, declared, loose=False) is right


@pytest.mark.parametrize("piece", [",", "a", "a:", 'put("a", 1);', "add(1);", "],[", " ", "[", "{"])
def test_no_literal_takes_long_to_read(piece):
    clock = time.process_time()
    for kind in ("java:HashMap", "java:ArrayList[integer]", "javascript:dict", "javascript:array[dict]"):
        for text in (
            piece * 100_000,
            "{" + piece * (990 // len(piece)) + "}",
            f"new HashMap<>() {{{{ {piece * 90} }}}}",
        ):
            accepts([{"a": [1]}], text, kind, loose=True)
    assert time.process_time() - clock < 1


def test_calls_may_come_in_any_order_and_each_counts_once():
    truth = [WANTED, {"name": "g", "arguments": {"x": 5}}, WANTED | {"accepted": ACCEPTED | {"base": [3]}}]
    calls = [{"name": "g", "arguments": {"x": 5.0}}, area(base=3, height=5), area(**LEAST)]
    assert acc(truth, *calls) == 1.0
    assert acc(truth, *calls[:2]) == acc(truth, *calls, calls[0]) == acc(truth, calls[0], calls[1], calls[1]) == 0.0


def test_no_call_as_the_right_answer():
    assert judge("None of them fits.", "[]")["acc"] == 1.0 and acc([], area(**LEAST)) == 0.0
    said = {"text": "<think>t</think>None of them fits.", "ground_truth": "[]"}
    assert tool_n1(sample(**said)) == 1.0 and toolrl(sample(**said)) == 4.0
    assert (
        tool_n1(sample(text="No.", ground_truth="[]")) == 0.0 and toolrl(sample(text="No.", ground_truth="[]")) == -3.0
    )
    called = {"text": text(area(**LEAST)), "ground_truth": "[]"}
    assert toolrl(sample(**called)) == 1.0 - 3.0
    listed = {"text": f"<think>t</think><tool_call>{json.dumps([area(**LEAST)])}</tool_call>", "ground_truth": "[]"}
    assert tool_n1(sample(**listed)) == 0.0
    # Where a call is right, saying nothing is neither.
    assert toolrl(sample(text="<think>t</think>No.", ground_truth=json.dumps([WANTED]))) == -3.0


def test_any_call_as_the_right_answer():
    assert judge(text(area(x=1)), ANY)["acc"] == 1.0 and judge("No.", ANY)["acc"] == 0.0
    assert toolrl(sample(text=text(area(x=1)), ground_truth=ANY)) == 4.0
    assert toolrl(sample(text="<think>t</think>No.", ground_truth=ANY)) == -3.0


def test_toolrl_pays_parts_of_a_call_with_accepted_values():
    # S_max = 1 + (1 + 2) for the call without optional arguments, 1 + (1 + 3) with one.
    for call, points, best in (
        (area(**LEAST), 4, 4),
        (area(**LEAST, unit="square units"), 5, 5),
        (area(**LEAST, unit="cm"), 1 + 1 + 2, 5),
        (area(base=10.0, height=5.5), 1 + 1 + 1, 4),
        (area(base=10), 1 + 0.5 + 1, 4),
    ):
        reward = toolrl(sample(text=text(call), ground_truth=json.dumps([WANTED])))
        assert reward == pytest.approx(1 + 6 * points / best - 3), call


@pytest.mark.parametrize(
    "truth",
    [
        "42",
        "none",
        '["f"]',
        '{"name": "f", "arguments": {}}',
        '[{"name": "f"}]',
        '[{"name": "f", "arguments": []}]',
        json.dumps([WANTED | {"accepted": {"base": 10}}]),
        json.dumps([WANTED | {"texts": "other"}]),
        '{"calls": "some"}',
        None,
    ],
)
def test_a_truth_that_is_none_is_one_sentence(truth):
    with pytest.raises(UserError, match="must be a JSON list of right calls"):
        read_truth(truth)
