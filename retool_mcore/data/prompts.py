"""Prompt templates: how a bare question is put to the policy. SFT and RL render through here, so they cannot differ."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.errors import UserError


@dataclass(frozen=True)
class Template:
    """The user turn is prefix + question + suffix. `answer_tags`: the template asks for <answer>...</answer>.

    `system` goes before the conversation as a message of its own, "" for none.
    """

    prefix: str
    suffix: str
    answer_tags: bool
    system: str = ""


QUESTION = "{question}"

_CALLING = (
    "You answer requests by calling the functions listed for you. First think inside <think> and </think> about which "
    "functions are needed and what their arguments are; then write all calls between <tool_call> and </tool_call>, "
)

_ANSWER_BLOCK = "<answer>\n\\boxed{'The final answer goes here.'}\n</answer>"

TEMPLATES = {
    # The instructions of ReTool's <code> template (arXiv 2504.11536, appendix), in our own words.
    "retool": Template(
        prefix=(
            "Work through the problem below one step at a time. Whenever a computation would help, you may write a "
            "Python program: it is run in a sandbox outside of you, and what it prints comes back to you as "
            "`<interpreter>output</interpreter>`, so that you can go on reasoning from it. Every program must be "
            "complete, with all of its imports, and must be written as\n"
            "<code>\n```python\nthe program\n```\n</code>\n"
            "Finish your response with the final answer in this form:\n"
            f"{_ANSWER_BLOCK}\n\n*user question:*\n"
        ),
        suffix=f"\n\nThe last part of your response must hold the final answer, in this form:\n{_ANSWER_BLOCK}",
        answer_tags=True,
    ),
    # The tool's description reaches the policy through the chat template; the suffix is the community recipe's own.
    "hermes": Template(
        prefix="", suffix="\nThe answer format must be: \\boxed{'The final answer goes here.'}", answer_tags=False
    ),
    "plain": Template(
        prefix="Work through the problem below one step at a time, in text only, and end with the final answer "
        "inside \\boxed{}.\n\n",
        suffix="",
        answer_tags=False,
    ),
    "tiny": Template(prefix="", suffix="", answer_tags=False),
    # What the rewards of arXiv 2505.00024 and 2504.13958 look for, in our own words; the functions are listed by the
    # chat template.
    "tool_n1": Template(
        prefix="",
        suffix="",
        answer_tags=False,
        system=_CALLING + "as one JSON list:\n<think>\nyour thoughts\n</think>\n<tool_call>\n"
        '[{"name": "a function", "arguments": {"an argument": "its value"}}]\n</tool_call>',
    ),
    "repository": Template(
        prefix="You work in a small Python repository, with the tools that are listed. Find the cause of what is "
        "reported below, change the code so that the repository's tests pass, run them, and then call submit. Leave "
        "the tests as they are: they are put back before they count.\n\n",
        suffix="",
        answer_tags=False,
    ),
    "toolrl": Template(
        prefix="",
        suffix="",
        answer_tags=False,
        system=_CALLING + "one JSON object a line:\n<think>\nyour thoughts\n</think>\n<tool_call>\n"
        '{"name": "a function", "arguments": {"an argument": "its value"}}\n</tool_call>',
    ),
}


def get_template(name: str) -> Template:
    """The template of that name, or of a text of the user's own that holds {question}, or of a .txt file of one.

    Raises UserError naming the nearest one when there is none.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    own = Path(name).expanduser()
    text = own.read_text(encoding="utf-8") if own.suffix == ".txt" and own.is_file() else name
    if text.count(QUESTION) == 1:
        return Template(*text.split(QUESTION), answer_tags="<answer>" in text)
    nearest = difflib.get_close_matches(name, TEMPLATES, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise UserError(
        f"unknown prompt template {name!r}: {hint}The templates are {', '.join(TEMPLATES)}; or write "
        f"your own text with one {QUESTION} in it, or the path of a .txt file that holds it."
    )


def render(template_name: str, question: str) -> list[dict[str, str]]:
    """The prompt as chat messages [{role, content}]; raises UserError for an unknown template.

    The question is concatenated, never formatted in: LaTeX is full of braces.
    """
    return render_conversation(template_name, [("user", question)])


def render_conversation(template_name: str, messages: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """A conversation of (role, content) as chat messages, each of the user's turns in the template."""
    template = get_template(template_name)
    system = [{"role": "system", "content": template.system}] if template.system else []
    return system + [
        {"role": role, "content": template.prefix + text + template.suffix if role == "user" else text}
        for role, text in messages
        if not (system and role == "system")
    ]
