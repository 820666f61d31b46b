"""Prompt templates: how a bare question is put to the policy. SFT and RL render through here, so they cannot differ."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from retool_mcore.errors import UserError
from retool_mcore.tables import yaml_beside


@dataclass(frozen=True)
class Template:
    """One entry of prompts.yaml, which says what its fields are."""

    formats: list[str]
    prefix: str = ""
    suffix: str = ""
    answer_tags: bool = False
    system: str = ""


QUESTION = "{question}"

TEMPLATES = {name: Template(**fields) for name, fields in yaml_beside(__file__).items()}


def get_template(name: str) -> Template:
    """The template of that name, or of a text of the user's own that holds {question}, or of a .txt file of one.

    Raises UserError naming the nearest one when there is none.
    """
    if name in TEMPLATES:
        return TEMPLATES[name]
    own = Path(name).expanduser()
    try:
        text = own.read_text(encoding="utf-8") if own.suffix == ".txt" and own.is_file() else name
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the prompt template {own}: {error}.") from error
    if text.count(QUESTION) == 1:
        prefix, suffix = text.split(QUESTION)
        return Template([], prefix, suffix, answer_tags="<answer>" in text)
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


def in_template(template_name: str, messages: Sequence[Mapping]) -> list[dict]:
    """Return chat messages with each of the user's turns in the template. The template's system message comes first,
    unless the messages have one."""
    template = get_template(template_name)
    own = any(message["role"] == "system" for message in messages)
    system = [{"role": "system", "content": template.system}] if template.system and not own else []
    return system + [
        {**message, "content": template.prefix + message["content"] + template.suffix}
        if message["role"] == "user"
        else dict(message)
        for message in messages
    ]
