"""A client that sends the history back gets the tokens that were sampled; one that changed it, a plain render."""

import pytest
from played_policy import LIMITS, played_policy, served
from test_openai_client import ASKED, PROGRAM, TOOLS, ask, called, client_of
from transformers import AutoTokenizer

from retool_mcore.data.formats import TOOL, get_format
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.gateway.memory import Memory
from retool_mcore.gateway.refusal import WireError

MORE = {"role": "user", "content": "And 7*7?"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return AutoTokenizer.from_pretrained(make_tiny_model(tmp_path_factory.mktemp("model"), seed=1))


def history_of(message, *further):
    return [*ASKED, message, *further]


@pytest.mark.parametrize("stream", [False, True])
def test_the_hidden_steps_of_an_answer_stay_in_the_conversation(tokenizer, stream):
    policy = played_policy(tokenizer, [PROGRAM, "It is 42.", "It is 49."])
    with served(policy) as (url, front):
        reply = ask(client_of(url), stream=stream)
        text = "".join(c.choices[0].delta.content or "" for c in reply) if stream else reply.choices[0].message.content
        ask(client_of(url), messages=history_of({"role": "assistant", "content": f"{text}\n"}, MORE))
        assert (front.memory.hits, front.memory.misses) == (1, 0)
    (before, _), (after, _) = policy.engine.requests[1:]
    assert after[: len(before)] == before and "print(6*7)" in policy.fmt.decode(after)
    assert policy.fmt.decode(after).endswith(f"{MORE['content']}{policy.fmt.eos_text}\n<|im_start|>assistant\n")


@pytest.mark.parametrize("change", [
    lambda message: {**message, "content": "It is 43."}, lambda message: {**message, "reasoning_content": "hm"},
])  # fmt: skip
def test_an_answer_that_the_client_changed_is_its_text(tokenizer, change):
    policy = played_policy(tokenizer, [PROGRAM, "It is 42.", "It is 49."])
    with served(policy) as (url, front):
        message = ask(client_of(url)).choices[0].message.to_dict()
        ask(client_of(url), messages=history_of(change(message), MORE))
        assert front.memory.misses == 1
    assert "print(6*7)" not in policy.fmt.decode(policy.engine.requests[2][0])


def test_calls_with_a_malformed_one_among_them_go_on_from_what_was_sampled(tokenizer):
    """The malformed one is answered by its error, the others by the client; arguments may be spelt anew."""
    policy = played_policy(tokenizer, [called("Rome", "dig") + called("Oslo"), "Cold."], "hermes", tools="client")
    with served(policy) as (url, _):
        message = ask(client_of(url), tools=TOOLS).choices[0].message.to_dict()
        message["tool_calls"][0]["function"]["arguments"] = '{ "city":"Oslo" }'
        output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "-3"}
        ask(client_of(url), messages=history_of(message, output), tools=TOOLS)
    (first, _), (second, _) = policy.engine.requests
    text = policy.fmt.decode(second[len(first) :])
    assert second[: len(first)] == first and text.index("unknown tool 'dig'") < text.index("-3")


def memory(tokenizer, name="text", **settings):
    return Memory(get_format(name, tokenizer), LIMITS, 2000, settings.pop("template", None), **settings)


def test_what_was_not_asked_for_longest_goes_first(tokenizer):
    kept = memory(tokenizer, most=100)
    for place in range(3):
        kept.note([{"role": "user", "content": str(place)}], None, {"role": "assistant", "content": "x"}, [5] * 40)
    assert kept.tokens == 80 and len(kept.known) == 2
    kept.note(ASKED, None, {"role": "assistant", "content": "x"}, [5] * 500)
    assert kept.tokens == 0 and not kept.known


def test_the_same_answer_under_other_tools_is_another_conversation(tokenizer):
    kept = memory(tokenizer, "hermes")
    reply = {"role": "assistant", "content": "x"}
    kept.note(ASKED, [TOOL], reply, [*kept.fmt.prompt_ids(ASKED), 7])
    assert kept.prompt_ids(history_of(reply, MORE), [TOOL])[-1] and kept.hits == 1
    kept.prompt_ids(history_of(reply, MORE), None)
    assert (kept.hits, kept.misses) == (1, 1)


def test_a_question_that_fills_the_context_is_refused(tokenizer):
    with pytest.raises(WireError) as caught:
        memory(tokenizer).prompt_ids([{"role": "user", "content": "x" * 3000}], None)
    assert caught.value.code == "context_length_exceeded"
