"""The forms of calls that the rollout, the rewards and the data read, and what they call the others."""

import json

import pytest
from chatml_tokenizer import make_tokenizer
from recipe_samples import sample

from retool_mcore.data.call_forms import block_values, call_parts, read_call
from retool_mcore.data.formats import get_format
from retool_mcore.data.function_schema import function_schema
from retool_mcore.rewards.tool_calls import UNREAD, judge, tool_n1
from retool_mcore.rewards.toolrl import toolrl

CALL = {"name": "f", "arguments": {"x": 5}}
TRUTH = json.dumps([CALL])
READ = [
    CALL,
    {"name": "f", "arguments": '{"x": 5}'},
    {"name": "f", "parameters": {"x": 5}},
    {"name": "f", "parameters": '{"x": 5}'},
    {"id": "call_1", "type": "function", "name": "f", "arguments": {"x": 5.0}},
    {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x": 5}'}},
]
UNREADABLE = [
    ({"name": "f"}, "a call has no arguments"),
    ({"arguments": {"x": 5}}, "a call has no name"),
    ({"name": "f", "arguments": {"x": 5}, "parameters": {"x": 5}}, "both arguments and parameters"),
    ({"name": "f", "arguments": "x=5"}, "the arguments of a call are no JSON object"),
    ({"name": "f", "arguments": [5]}, "the arguments of a call are no JSON object"),
    ({"name": "f", "arguments": {"x": 5}, "score": 1}, "the key 'score'"),
    ({"id": "a", "score": 1, "function": CALL}, "the key 'score'"),
    ({"f": {"x": 5}}, "a call has no name"),
    ("f(x=5)", "a call is a JSON object, not a text"),
    ([CALL], "a call is a JSON object, not a list"),
]
BODIES = ["{}", "\n{}\n", "```json\n{}\n```", "```\n{}\n```", "\n```json\n{}\n```\n"]
TOOLS = [function_schema("f", "F.", {"type": "object", "properties": {"x": {"type": "number"}}})]
HERMES = get_format("hermes", make_tokenizer())


def block(body):
    return f"<think>t</think><tool_call>{body}</tool_call>"


@pytest.mark.parametrize("form", READ)
def test_a_form_is_read_by_the_rollout_and_by_every_reward(form):
    assert read_call(form) in (CALL, CALL | {"arguments": {"x": 5.0}})
    for body in (json.dumps(form), json.dumps([form])):
        assert judge(block(body), TRUTH)["acc"] == 1.0
        (parsed,) = HERMES.parse(block(body) + "<|im_end|>", TOOLS)
        assert (parsed.error, parsed.name, parsed.arguments) == (None, "f", {"x": 5})
    assert tool_n1(sample(text=block(json.dumps([form])), ground_truth=TRUTH)) == 1.0
    assert toolrl(sample(text=block(json.dumps(form)), ground_truth=TRUTH)) == 4.0


@pytest.mark.parametrize("body", BODIES)
def test_a_fence_inside_the_block_is_no_part_of_the_calls(body):
    one, listed = (body.replace("{}", json.dumps(value)) for value in (CALL, [CALL]))
    assert judge(block(one), TRUTH)["acc"] == judge(block(listed), TRUTH)["acc"] == 1.0
    assert tool_n1(sample(text=block(listed), ground_truth=TRUTH)) == 1.0
    assert toolrl(sample(text=block(one), ground_truth=TRUTH)) == 4.0
    (parsed,) = HERMES.parse(block(one) + "<|im_end|>", TOOLS)
    assert parsed.error is None and parsed.arguments == {"x": 5}


@pytest.mark.parametrize(("value", "reason"), UNREADABLE)
def test_another_form_is_a_named_failure(value, reason):
    with pytest.raises(ValueError, match=reason):
        read_call(value)
    assert reason in call_parts(value).reason
    text = block(json.dumps([value]))
    for truth in (TRUTH, "[]"):
        verdict = judge(text, truth)
        assert (verdict["acc"], verdict["graded_by"]) == (0.0, UNREAD)
        assert tool_n1(sample(text=text, ground_truth=truth)) == 0.0


@pytest.mark.parametrize("body", ["", "f(x=5)", "[f(x=5)]", "{", "```json\n{", json.dumps(CALL) + "\nand so on"])
def test_what_is_no_json_is_a_counted_failure(body):
    with pytest.raises(ValueError):
        block_values(body)
    assert judge(block(body), TRUTH)["graded_by"] == judge(block(body), "[]")["graded_by"] == UNREAD
    (parsed,) = HERMES.parse(block(body) + "<|im_end|>", TOOLS)
    assert "not valid JSON" in parsed.error


def test_a_call_that_is_never_closed_is_no_answer_without_calls():
    text = '<think>t</think><tool_call>{"name": "f", "arguments": {"x"'
    assert judge(text, "[]")["graded_by"] == UNREAD and judge("I cannot.", "[]")["acc"] == 1.0
    assert judge(text + "</tool_call>", "[]")["acc"] == 0.0
    # A tag that the policy left open before it called is no call.
    assert judge('I write <tool_call>{"a"' + block(json.dumps(CALL)), TRUTH)["acc"] == 1.0


def test_a_block_with_an_empty_list_calls_nothing():
    assert HERMES.parse("<tool_call>[]</tool_call><|im_end|>", TOOLS) == []
    assert judge(block("[]"), "[]")["acc"] == 1.0 and judge(block("[]"), TRUTH)["acc"] == 0.0


def test_the_code_interpreter_takes_one_call_a_block():
    program = {"name": "code_interpreter", "arguments": {"code": "print(1)"}}
    text = "<tool_call>{}</tool_call><|im_end|>"
    (alone,) = HERMES.parse(text.replace("{}", json.dumps([program | {"id": "c"}])))
    assert (alone.code, alone.error) == ("print(1)", None)
    for body in ("[]", json.dumps([program, program])):
        (refused,) = HERMES.parse(text.replace("{}", body))
        assert refused.code is None and "write one call" in refused.error
    (wrong,) = HERMES.parse(text.replace("{}", '{"name": "code_interpreter", "arguments": "print(1)"}'))
    assert "must be a JSON object" in wrong.error
    # A row without functions lists none, and the interpreter is not one of them.
    (unknown,) = HERMES.parse(text.replace("{}", json.dumps(program)), [])
    assert "unknown tool" in unknown.error
