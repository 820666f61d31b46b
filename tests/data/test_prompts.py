import pytest

from retool_mcore.data.prompts import TEMPLATES, get_template, render
from retool_mcore.errors import UserError

QUESTION = "Find {x} with $\\frac{1}{x} = %s$, x² — \\boxed{?}"


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_question_appears_once_and_verbatim_in_one_user_turn(name):
    (message,) = render(name, QUESTION)
    assert message["role"] == "user"
    assert message["content"].count(QUESTION) == 1


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
