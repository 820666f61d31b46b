"""Prompt templates: how a bare question is put to the policy. SFT and RL render through here, so they cannot differ."""

import difflib
from dataclasses import dataclass

from retool_mcore.errors import UserError


@dataclass(frozen=True)
class Template:
    """The user turn is prefix + question + suffix. `answer_tags`: the template asks for <answer>...</answer>."""

    prefix: str
    suffix: str
    answer_tags: bool


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
}


def get_template(name: str) -> Template:
    """The template of that name; raises UserError naming the nearest one when there is none."""
    if name in TEMPLATES:
        return TEMPLATES[name]
    nearest = difflib.get_close_matches(name, TEMPLATES, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    raise UserError(f"unknown prompt template {name!r}: {hint}The templates are {', '.join(TEMPLATES)}.")


def render(template_name: str, question: str) -> list[dict[str, str]]:
    """The prompt as chat messages [{role, content}]; raises UserError for an unknown template.

    The question is concatenated, never formatted in: LaTeX is full of braces.
    """
    template = get_template(template_name)
    return [{"role": "user", "content": template.prefix + question + template.suffix}]
