"""Requests as clients send them, and requests that a front refuses: one sentence each, with a code and the key."""

import json

import pytest

from retool_mcore.gateway.refusal import WireError
from retool_mcore.gateway.wire import MAX_PROMPTS, Rules, parse_chat, parse_completion, read_body

SERVE, TRAINING = Rules("policy", max_n=8, sampling=True, max_logprobs=5), Rules(None)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALLS = [{"id": name, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}} for name in "xy"]
CALLED = {"role": "assistant", "content": None, "tool_calls": CALLS}


def replies(*names):
    return [{"role": "tool", "tool_call_id": name, "content": name} for name in names]


def chat(rules=SERVE, **keys):
    return parse_chat({"model": "policy", "messages": [USER], **keys}, rules)


def refused(rules=SERVE, **keys):
    with pytest.raises(WireError) as caught:
        chat(rules, **keys)
    error = caught.value
    assert (
        str(error).endswith((".", "messages: x", "messages: y", "messages: x, y")) and error.body()["error"]["message"]
    )
    return error


def test_the_simplest_request_gets_the_defaults():
    request = chat()
    assert (request.n, request.stream, request.logprobs, request.stop, request.max_tokens) == (
        1,
        False,
        False,
        (),
        None,
    )
    assert request.messages == [USER] and request.tools is None and request.sampling.temperature is None


def test_null_is_a_key_that_is_not_given():
    keys = (
        "stop",
        "n",
        "temperature",
        "tools",
        "tool_choice",
        "stream",
        "max_tokens",
        "logit_bias",
        "logprobs",
        "seed",
    )
    assert chat(**dict.fromkeys(keys)) == chat()


def test_messages_of_all_clients_become_canonical():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {}}]
    messages = [{"role": "developer", "content": parts}, USER, {**CALLED, "refusal": None, "audio": None}]
    found = chat(messages=[*messages, *replies("y", "x")]).messages
    assert found[0] == {"role": "system", "content": "ab"}
    assert found[2] == {"role": "assistant", "content": "", "tool_calls": CALLS}
    assert [one["tool_call_id"] for one in found[3:]] == ["y", "x"]


def test_tools_are_described_alike_whoever_wrote_them():
    bare = {"type": "function", "function": {"name": "now", "strict": True}}
    described = {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}
    assert chat(tools=[bare]).tools == [{"type": "function", "function": described}]
    assert chat(tools=[bare], tool_choice="none").tools is None


def test_stop_and_length_in_all_their_spellings():
    assert chat(stop="a").stop == ("a",) and chat(stop=["a", "a", "b"]).stop == ("a", "b")
    assert chat(max_tokens=5).max_tokens == 5 and chat(max_completion_tokens=6, max_tokens=5).max_tokens == 6


def test_a_served_policy_is_sampled_as_the_client_says_and_a_trained_one_is_not():
    keys = {"temperature": 0, "top_p": 0.5, "seed": 3}
    assert chat(**keys).sampling.temperature == 0 and chat(**keys).overridden == ()
    request = chat(TRAINING, **keys, model="anything")
    assert set(request.overridden) == set(keys) and request.sampling.seed is None and request.model == "anything"
    assert chat(logit_bias={"5": -100}).sampling.logit_bias == {5: -100.0}


@pytest.mark.parametrize("key, value", [("min_p", 0.1), ("presence_penalty", 1), ("logit_bias", {"1": 1}),
                                        ("repetition_penalty", 1.2), ("frequency_penalty", 0.5)])  # fmt: skip
def test_what_the_trainer_could_not_compute_is_refused_there(key, value):
    assert refused(TRAINING, **{key: value}).code == "unsupported_parameter"
    chat(**{key: value})
    chat(TRAINING, presence_penalty=0, repetition_penalty=1, logit_bias={}, min_p=0.0)


@pytest.mark.parametrize("keys", [
    {"response_format": {"type": "json_object"}}, {"tool_choice": "required"}, {"functions": []}, {"best_of": 2},
    {"tool_choice": {"type": "function", "function": {"name": "add"}}}, {"continue_final_message": True},
    {"parallel_tool_calls": False}, {"suffix": "x"},
])  # fmt: skip
def test_what_nothing_here_does_is_refused_by_its_name(keys):
    error = refused(**keys)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", next(iter(keys)))
    assert error.param in str(error)


@pytest.mark.parametrize("keys", [
    {"n": 9}, {"n": 10**9}, {"n": 0}, {"n": True}, {"n": "1"}, {"temperature": -1},
    {"temperature": 2.1}, {"temperature": "hot"},
    {"top_p": 0}, {"top_p": 2}, {"max_tokens": 0}, {"max_tokens": -1}, {"max_tokens": 1.5}, {"stop": ["a" * 300]},
    {"stop": [""]}, {"stop": list("abcde")}, {"stop": 3}, {"stream": "yes"}, {"seed": 2**64}, {"top_logprobs": 1},
    {"logprobs": True, "top_logprobs": 6}, {"messages": []}, {"messages": "hi"}, {"messages": [{"role": "user"}, 3]},
    {"messages": [{"role": "robot", "content": "x"}]}, {"messages": [{"role": "user", "content": 3}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}, {"tools": [{"type": "retrieval"}]},
    {"tools": [TOOL, TOOL]}, {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "x"}}}]},
    {"messages": [USER, {"role": "assistant", "content": "x"}]}, {"logit_bias": {"word": 1}},
    {"messages": [USER, {**CALLED, "tool_calls": [CALLS[0], CALLS[0]]}, *replies("x")]},
    {"messages": [{**CALLED, "role": "user"}, *replies("x", "y")]},
    {"messages": [USER, {**CALLED, "tool_calls": [{**CALLS[0], "function": {"name": "a", "arguments": "[1]"}}]}]},
])  # fmt: skip
def test_nonsense_is_an_invalid_request(keys):
    error = refused(**keys)
    assert (error.status, error.code) == (400, "invalid_request")
    assert error.body()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("messages", [
    [USER, CALLED], [USER, CALLED, *replies("x")], [USER, CALLED, USER, *replies("x", "y")], [USER, *replies("x")],
    [USER, CALLED, *replies("x", "x", "y")], [USER, CALLED, *replies("x", "y", "z")],
    [USER, {"role": "tool", "content": "no id"}],
])  # fmt: skip
def test_calls_and_replies_belong_together(messages):
    assert refused(messages=messages).code == "missing_tool_reply"


def test_images_and_other_models_are_named():
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
    assert refused(messages=[image]).code == "image_not_supported"
    error = refused(model="gpt-5")
    assert (error.status, error.code) == (404, "model_not_found") and "'policy'" in str(error)


def test_unknown_keys_are_listed():
    assert chat(reasoning_effort="low", store=True).ignored == ("reasoning_effort", "store")


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"3", b"\xff", b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"a": 1e999}', b'{"a": "\\ud800"}',
    b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a": ' + b"[" * 80 + b"]" * 80 + b"}", b"1" * 10_000,
])  # fmt: skip
def test_what_is_no_sound_json_object_is_refused(body):
    with pytest.raises(WireError) as caught:
        read_body(body)
    assert caught.value.status == 400 and len(str(caught.value)) < 300


def test_a_long_body_is_read():
    assert read_body(json.dumps({"a": "x" * 10**6}).encode())["a"][-1] == "x"


def completion(**keys):
    return parse_completion({"model": "policy", **keys}, SERVE)


def test_prompts_are_texts_or_token_ids():
    assert completion(prompt="a").prompts == ["a"] and completion(prompt=["a", "b"]).prompts == ["a", "b"]
    assert completion(prompt=[1, 2]).prompts == [[1, 2]] and completion(prompt=[[1], [2]]).prompts == [[1], [2]]
    request = completion(prompt="a", logprobs=1, echo=True, max_tokens=0)
    assert request.logprobs and request.top_logprobs == 1 and request.echo and request.max_tokens == 0
    assert completion(prompt="a").max_tokens == 16


@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [""], [-1], [1.5], [True], [1, "a"], ["a", 1], [[1], "", [2]], {}, ["a"] * (MAX_PROMPTS + 1)],
)
def test_other_prompts_are_refused(prompt):
    with pytest.raises(WireError) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


def test_an_error_that_is_final_tells_the_client():
    assert WireError(500, "engine_error", "x.", final=True).headers() == {"x-should-retry": "false"}
    assert WireError(401, "invalid_api_key", "x.").body()["error"]["type"] == "authentication_error"
    assert WireError(503, "draining", "x.").body()["error"]["type"] == "server_error"
