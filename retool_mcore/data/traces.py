r"""Both published forms of the ReTool cold-start data, parsed into format-neutral segments.

`JoeYing/ReTool-SFT` writes a whole solution as one assistant text with <code>, <interpreter> and <answer> tags;
`swordfaith/ReTool-SFT-multi-turn` splits the same solutions into messages with tool calls. The same solution gives the
same segments from either: outer blank space of a text goes, and a text before code ends in one \n, so that `<code>`
starts a line.

Parsing is strict, because what slips through here is imitated: a trace that is not text, code and observation in turn,
ending in a boxed answer, raises MalformedRow with the reason.
"""

import json
import re
from typing import Any

from retool_mcore.data.boxed import boxes
from retool_mcore.data.formats import TOOL_NAME
from retool_mcore.data.records import MalformedRow, Segment, Trace, at, field, text_field

# By the part of a solution, the tags that may end it, and the part that each begins; `gap` is between </code> and
# <interpreter>.
_STEPS = {
    "text": {"<code>": "code"},
    "code": {"</code>": "gap"},
    "gap": {"<interpreter>": "observation"},
    "observation": {"</interpreter>": "text"},
}
# Reasons for the tags that are out of turn most often.
_WRONG = {
    "text": {"<interpreter>": "observation without code: an <interpreter> block follows no <code> block"},
    "gap": {"<code>": "code without observation: a <code> block is followed by another"},
}
_TAG = re.compile(r"(</?(?:code|interpreter)>)")
_ANSWER_TAG = re.compile(r"</?answer>")
_ANSWER_BLOCK = re.compile(r"<answer>(?:(?!</?answer>).)*</answer>", re.DOTALL)
_FENCE = re.compile(r"\s*+```([^\s`]*+)[ \t]*+\n(.*)```\s*+", re.DOTALL)

# The multi-turn set doubles the asterisks.
_MARKER = re.compile(r"\*{1,2}user question:\*{1,2}")
_LEAD_IN = re.compile(
    r"\A\s*Answer the following Math Problem and put the answer in the format of \\boxed\{+answer\}+\s*"
)
_LEAD_OUT = re.compile(
    r"\s*(?:Remember to place the final answer in the last part using the format|The answer format must be):"
    r"\s*+(?:<answer>)?\s*+\\boxed\{+'The final answer goes here\.'\}+\s*+(?:</answer>)?\s*+\Z"
)


def text_trace(row: dict, data_source: str, index: int) -> Trace:
    """A row of `JoeYing/ReTool-SFT`: messages = [user, assistant], the whole solution in the assistant's text."""
    user, assistant = _two_texts(_messages(row))
    if not _MARKER.search(user):
        raise MalformedRow("the user text has no '*user question:*'")
    segments = _checked(_split_tags(assistant))
    if not _ANSWER_TAG.search(segments[-1].text):
        raise MalformedRow("missing final answer: the text does not end in an <answer> block")
    return Trace(data_source, extract_question(user), segments, index)


def own_trace(row: dict, data_source: str, index: int, *, messages: str) -> Trace:
    """A row of the user's own: under the column `messages` either form, without the public sets' wrappers."""
    named = {"messages": at(row, messages)}
    turns = _messages(named)
    if any(role == "tool" or message.get("tool_calls") for role, message in turns):
        return tool_call_trace(named, data_source, index)
    user, assistant = _two_texts(turns[1:] if turns and turns[0][0] == "system" else turns)
    return Trace(data_source, extract_question(user), _checked(_split_tags(assistant)), index)


def _two_texts(messages: list[tuple[str, dict]]) -> list[str]:
    roles = [role for role, _ in messages]
    if roles != ["user", "assistant"]:
        raise MalformedRow(f"messages have the roles {roles}, expected ['user', 'assistant']")
    return [text_field(field(m, "content", f"{role} message"), f"{role} content") for role, m in messages]


def tool_call_trace(row: dict, data_source: str, index: int) -> Trace:
    """A row of `swordfaith/ReTool-SFT-multi-turn`: [system,] user, (assistant with a call, tool) ..., assistant."""
    messages = _messages(row)
    if messages and messages[0][0] == "system":
        messages = messages[1:]
    if not messages or messages[0][0] != "user":
        raise MalformedRow("the first message after the system message is not the user's")
    question = extract_question(text_field(field(messages[0][1], "content", "user message"), "user content"))
    segments: list[Segment] = []
    pending_id: str | None = None
    for number, (role, message) in enumerate(messages[1:], start=1):
        where = f"{role} message {number}"
        waiting = bool(segments) and segments[-1].kind == "code"
        content = field(message, "content", where)
        if role == "tool":
            if not waiting:
                raise MalformedRow(f"observation without code: {where} follows no tool call")
            reply_id = message.get("tool_call_id")
            if pending_id and reply_id and pending_id != reply_id:
                raise MalformedRow(f"{where} answers call {reply_id!r}, expected {pending_id!r}")
            segments.append(Segment("observation", _trim(text_field(content, f"{where} content"))))
        elif role == "assistant":
            if waiting:
                raise MalformedRow(f"code without observation: {where} follows a tool call that has no reply")
            if segments and segments[-1].kind == "text":
                raise MalformedRow(f"{where} follows an assistant message that made no tool call")
            calls = message.get("tool_calls") or []
            if content is not None or not calls:
                segments += _text(text_field(content, f"{where} content"), before_code=bool(calls))
            if calls:
                code, pending_id = _call(calls, where)
                segments.append(Segment("code", code))
        else:
            raise MalformedRow(f"{where} comes after the question; only assistant and tool messages may")
    return Trace(data_source, question, _checked(segments), index)


def extract_question(user_text: str) -> str:
    """The bare problem: what follows the marker, without the data set's own answer-format reminders and <answer> tags.

    The reminders go because our template says where the answer belongs. Raises MalformedRow when nothing is left.
    """
    marker = _MARKER.search(user_text)
    question = user_text[marker.end() :] if marker else user_text
    question = _LEAD_OUT.sub("", question)
    question = _ANSWER_TAG.sub("", _LEAD_IN.sub("", question)).strip()
    if not question:
        raise MalformedRow("empty question")
    return question


def without_answer_tags(segments: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """The segments for a prompt template that does not ask for <answer> tags."""
    final = Segment("text", _ANSWER_TAG.sub("", segments[-1].text).strip())
    return (*segments[:-1], final)


def _messages(row: dict) -> list[tuple[str, dict]]:
    messages = field(row, "messages", "row")
    if not isinstance(messages, list):
        raise MalformedRow(f"messages is {'null' if messages is None else type(messages).__name__}, expected a list")
    return [
        (text_field(field(message, "role", f"message {i}"), f"role of message {i}"), message)
        for i, message in enumerate(messages)
    ]


def _split_tags(text: str) -> list[Segment]:
    """Split one assistant text into segments, by a walk over its tags that knows which tag may come next."""
    segments: list[Segment] = []
    inside: Any = "text"  # or "code", "gap" (between </code> and <interpreter>), "observation"
    for piece in _TAG.split(text):
        if _TAG.fullmatch(piece):
            if piece not in _STEPS[inside]:
                stray = f"unbalanced tags: {piece} where none may stand"
                raise MalformedRow(_WRONG.get(inside, {}).get(piece, stray))
            if piece == "<code>" and segments and segments[-1].kind == "text":
                segments[-1] = Segment("text", segments[-1].text + "\n")
            inside = _STEPS[inside][piece]
        elif inside == "text":
            segments += _text(piece, before_code=False)
        elif inside == "gap":
            if piece.strip():
                raise MalformedRow("code without observation: text stands between </code> and <interpreter>")
        else:
            segments.append(Segment(inside, _bare_code(piece) if inside == "code" else _trim(piece)))
    if inside == "gap":
        raise MalformedRow("code without observation: the last <code> block has none")
    if inside != "text":
        tag = "<code>" if inside == "code" else "<interpreter>"
        raise MalformedRow(f"unbalanced tags: the last {tag} is not closed")
    return segments


def _text(content: str, *, before_code: bool) -> list[Segment]:
    text = content.strip()
    return [Segment("text", text + "\n" if before_code else text)] if text else []


def _trim(text: str) -> str:
    # The first line's indentation is part of a printed table; blank lines around the output are the tags' own.
    return text.strip("\n").rstrip()


def _bare_code(text: str) -> str:
    """The program inside a ```python fence, or the text itself where there is none."""
    fenced = _FENCE.fullmatch(text)
    if not fenced and text.lstrip().startswith("```"):
        expected = "expected ```python, the program, ``` on lines of their own"
        raise MalformedRow(f"a code block's fence is not closed: {expected}")
    if fenced and fenced[1].lower() not in ("", "py", "python", "python3"):
        raise MalformedRow(f"a code block is in {fenced[1]!r}, expected Python")
    code = _trim(fenced[2] if fenced else text)
    if not code.strip():
        raise MalformedRow("empty code block")
    if fenced and re.search(r"^[ \t]*```", code, re.MULTILINE):
        raise MalformedRow("a code block holds several ``` fences")
    return code


def _call(calls: Any, where: str) -> tuple[str, str | None]:
    """(bare code, call id or None) of an assistant message's only tool call."""
    if not isinstance(calls, list) or len(calls) != 1:
        number = len(calls) if isinstance(calls, list) else type(calls).__name__
        raise MalformedRow(f"{where} makes {number} tool calls, expected a list of one")
    function = field(calls[0], "function", f"tool call of {where}")
    name = field(function, "name", f"function of {where}")
    if name != TOOL_NAME:
        raise MalformedRow(f"{where} calls {name!r}, expected {TOOL_NAME!r}")
    arguments = field(function, "arguments", f"function of {where}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError as error:
            raise MalformedRow(f"the arguments of {where} are not JSON: {error}") from error
    code = text_field(field(arguments, "code", f"arguments of {where}"), f"code of {where}")
    return _bare_code(code), calls[0].get("id")


def _checked(segments: list[Segment]) -> tuple[Segment, ...]:
    """The rules both forms share: no stray tags, and the last segment is a text that ends in a boxed answer."""
    for segment in segments:
        if _TAG.search(segment.text):
            raise MalformedRow(f"unbalanced tags: {_TAG.search(segment.text)[0]} inside a {segment.kind} segment")
    if segments and segments[-1].kind == "code":
        raise MalformedRow("code without observation: the last tool call has no reply")
    if not segments or segments[-1].kind != "text":
        raise MalformedRow("missing final answer: the trace does not end in text")
    if any(_ANSWER_TAG.search(s.text) for s in segments[:-1] if s.kind == "text"):
        raise MalformedRow("an <answer> tag stands before the end of the trace")
    final = segments[-1].text
    if _ANSWER_TAG.search(final):
        blocks = _ANSWER_BLOCK.findall(final)
        if len(blocks) != 1 or len(_ANSWER_TAG.findall(final)) != 2:
            raise MalformedRow("unbalanced tags: expected one <answer> and one </answer>")
        if not final.endswith(blocks[0]):
            raise MalformedRow("text follows </answer>")
        final = blocks[0]
    if not any(content for _, _, content in boxes(final)):
        raise MalformedRow("missing final answer: no \\boxed{...} at the end")
    return tuple(segments)
