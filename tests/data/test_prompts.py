import pytest

from retool_mcore.data.prompts import TEMPLATES, get_template, render, render_conversation
from retool_mcore.errors import UserError
from retool_mcore.rewards.tool_calls import parse_calls, parse_lines
from retool_mcore.rewards.toolrl import _called

QUESTION = "Find {x} with $\\frac{1}{x} = %s$, x² — \\boxed{?}"


def toolrl_lines(text):
    calls = _called(text)
    return None if calls is None else parse_lines(calls)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_question_appears_once_and_verbatim_in_one_user_turn(name):
    *system, message = render(name, QUESTION)
    assert message["role"] == "user"
    assert message["content"].count(QUESTION) == 1
    assert [other["role"] for other in system] == (["system"] if name in ("tool_n1", "toolrl") else [])


@pytest.mark.parametrize(("name", "read"), [("tool_n1", parse_calls), ("toolrl", toolrl_lines)])
def test_the_example_of_a_call_is_written_as_the_reward_reads_it(name, read):
    """And the instruction stands once, in the place of the data set's own, before the whole conversation."""
    turns = [("system", "Call as f(x)."), ("user", "a?"), ("assistant", "b"), ("user", "c?")]
    messages = render_conversation(name, turns)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    example = messages[0]["content"].rpartition("\n<think>")[2]
    assert read("<think>" + example) == [{"name": "a function", "arguments": {"an argument": "its value"}}]
    assert render_conversation("tiny", turns)[0]["content"] == "Call as f(x)."


def test_retool_states_the_whole_protocol():
    content = render("retool", QUESTION)[0]["content"]
    for part in (
        "<code>\n```python\n",
        "\n```\n</code>",
        "<interpreter>",
        "</interpreter>",
        "*user question:*\n" + QUESTION,
    ):
        assert part in content
    assert content.endswith("<answer>\n\\boxed{'The final answer goes here.'}\n</answer>")


def test_hermes_is_the_question_and_the_community_suffix():
    assert (
        render("hermes", "Q?")[0]["content"] == "Q?\nThe answer format must be: \\boxed{'The final answer goes here.'}"
    )


def test_plain_mentions_the_box_and_no_tool():
    content = render("plain", "Q?")[0]["content"]
    assert "\\boxed{}" in content
    assert not any(word in content for word in ("<code>", "Python", "interpreter", "tool"))


def test_tiny_is_the_bare_question():
    assert render("tiny", "1+2=") == [{"role": "user", "content": "1+2="}]


def test_only_a_template_that_asks_for_answer_tags_says_so():
    for name, template in TEMPLATES.items():
        assert template.answer_tags == ("<answer>" in render(name, "")[0]["content"])


def test_an_unknown_template_names_the_nearest():
    with pytest.raises(UserError, match="unknown prompt template 'hermess': did you mean 'hermes'"):
        get_template("hermess")
    with pytest.raises(UserError, match="The templates are retool, hermes, plain, tiny"):
        render("zzz", "Q?")
