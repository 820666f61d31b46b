"""Function-calling data sets: a row becomes conversations that the policy must answer with the right calls.

A row is dropped when its calls name a tool that it does not describe, or do not fit that tool's JSON schema: the
right call would be graded wrong. A row without any call is one whose right answer is no call. ToolACE
writes calls as Python text (`read_calls`).
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any

from retool_mcore.data.accepted_calls import accepted_calls, lists_accepted_values
from retool_mcore.data.blocks import CALL, call_blocks
from retool_mcore.data.call_forms import block_values, read_call
from retool_mcore.data.function_schema import argument_error, tool_schemas
from retool_mcore.data.records import CallProblem, MalformedRow, Segment, Trace, at, field, text_field

ABILITY = "function_calling"  # the column `ability` of such rows
NO_CALL = "[]"  # the ground truth of a row whose right answer is no call
TURNS = 100  # indices that a row's conversations have: row * TURNS + turn

_LIST = re.compile(r"\[\s*\{")


def xlam_problem(row: dict, data_source: str, index: int) -> CallProblem:
    """A row of xLAM (APIGen, arXiv 2406.18518): `query`, and `tools` and `answers` as JSON texts.

    An empty list of answers says that no call is right. Answers may also list accepted values (accepted_calls.py).
    """
    question = _text(field(row, "query", "row"), "query")
    tools, answers = (_json(field(row, name, "row"), name) for name in ("tools", "answers"))
    schemas = tool_schemas(tools, "tools", may_be_empty=answers == [])
    if lists_accepted_values(answers):
        calls = accepted_calls(answers, [schema["function"] for schema in schemas], "answers")
    else:
        calls = _calls(answers, "answers", schemas) if answers != [] else []
    return conversation_problem(data_source, index, [("user", question)], schemas, calls)


def toolace_problems(row: dict, data_source: str, index: int) -> list[CallProblem]:
    """A row of ToolACE (arXiv 2409.00920), one problem for each assistant turn that calls, on the turns before it.

    Where none calls, each of its answers to the user is a problem whose right answer is no call. `system` holds the
    functions as a JSON list; `conversations` are {from, value} with from user, assistant or tool. The system prompt
    itself, which asks for calls as Python text, is left out: the prompt template takes its place.
    """
    schemas = tool_schemas(_system_functions(text_field(field(row, "system", "row"), "system")), "system")
    turns = field(row, "conversations", "row")
    if not isinstance(turns, list) or not 0 < len(turns) <= TURNS:
        raise MalformedRow(f"conversations is no list of 1 to {TURNS} turns")
    chat = [(field(t, "from", "a turn"), text_field(field(t, "value", "a turn"), "a turn's value")) for t in turns]
    messages: list[tuple[str, str]] = []
    problems, without_call = [], []
    for number, (role, text) in enumerate(chat):
        if role not in ("user", "assistant", "tool"):
            raise MalformedRow("a turn is from another than user, assistant or tool")
        if role == "assistant" and messages and messages[-1][0] == "user":
            without_call.append(conversation_problem(data_source, index * TURNS + number, messages, schemas, []))
        if role != "assistant" or not text.lstrip().startswith("["):
            messages.append((role, text.strip()))
            continue
        calls = _calls(read_calls(text), "a turn", schemas)
        replies = _replies(calls, chat[number + 1] if number + 1 < len(chat) else None)
        problems.append(conversation_problem(data_source, index * TURNS + number, messages, schemas, calls, replies))
        messages.append((role, "\n".join(map(_written, calls))))
    if not problems and not without_call:
        raise MalformedRow("no turn answers the user")
    return problems or without_call


def own_call_problems(
    row: dict, data_source: str, index: int, *, question: str, answer: str | None, messages: str, tools: str
) -> list[CallProblem]:
    """A row of the user's own whose functions are under `tools`; the other names are columns, too (dotted paths).

    With a chat under `messages` each assistant message that calls is a problem on the messages before it; where none
    calls, each that answers the user is one whose right answer is no call. A row without that column has a text under
    `question` and its calls under `answer`, as xLAM's. Raises MalformedRow.
    """
    if not isinstance(row, dict) or messages.partition(".")[0] not in row:
        if answer is None:
            raise MalformedRow(f"the row has no column {messages!r}, and data.file.answer is null")
        xlam = {"query": at(row, question), "tools": at(row, tools), "answers": at(row, answer)}
        return [xlam_problem(xlam, data_source, index)]
    schemas, chat = _chat(row, messages, tools)
    made = [
        conversation_problem(
            data_source, index * TURNS + n, _shown(chat[:n]), schemas, calls, _own_replies(calls, chat[n + 1 :])
        )
        for n, (role, _, calls) in enumerate(chat)
        if calls or (role == "assistant" and chat[n - 1][0] == "user")
    ]
    problems = [problem for problem in made if problem.answer != NO_CALL] or made
    if not problems:
        raise MalformedRow("no assistant message answers the user")
    return problems


def own_call_traces(row: dict, data_source: str, index: int, *, messages: str, tools: str) -> list[Trace]:
    """Return a chat's traces, read like `own_call_problems`: one for each assistant message, its text and calls, given
    the messages before."""
    schemas, chat = _chat(row, messages, tools)
    shown, listed = _shown(chat), json.dumps(schemas, ensure_ascii=False)
    question = next((text for role, text in shown if role == "user"), "")
    traces = [
        Trace(data_source, question, (Segment("text", shown[n][1]),), index * TURNS + n, listed, tuple(shown[:n]))
        for n, (role, _, _) in enumerate(chat)
        if role == "assistant"
    ]
    if not traces:
        raise MalformedRow("no message is the assistant's")
    return traces


_Said = tuple[str, str, list[dict]]  # role, text with its calls as the hermes format writes them, calls


def _chat(row: dict, messages: str, tools: str) -> tuple[list[dict], list[_Said]]:
    listed, turns = _json(at(row, tools), tools), at(row, messages)
    if not isinstance(turns, list) or not 0 < len(turns) <= TURNS:
        raise MalformedRow(f"{messages} is no list of 1 to {TURNS} messages")
    read: list[tuple[str, str, list, str]] = []  # role, text, calls as they are written, where
    for number, turn in enumerate(turns):
        role, where = field(turn, "role", f"message {number}"), f"message {number}"
        if role not in ("system", "user", "assistant", "tool"):
            raise MalformedRow(f"{where} is of the role {role!r}, expected system, user, assistant or tool")
        made = (turn.get("tool_calls") or []) if role == "assistant" else []
        content = "" if made and turn.get("content") is None else field(turn, "content", where)
        text = text_field(content, f"the content of {where}").strip()
        if not isinstance(made, list) or not all(isinstance(call, dict) for call in made):
            raise MalformedRow(f"tool_calls of {where} is no list of calls")
        if role == "assistant" and not made:
            text, made = _calls_in_text(text, where)
        if not text and not made and role != "tool":
            raise MalformedRow(f"{where} is empty")
        if role == "assistant" and not any(before == "user" for before, *_ in read):
            raise MalformedRow("nothing is asked before the assistant's first message")
        read.append((role, text, made, where))
    schemas = tool_schemas(listed, tools, may_be_empty=not any(made for _, _, made, _ in read))
    chat: list[_Said] = []
    for role, text, made, where in read:
        calls = _calls(made, where, schemas) if made else []
        written = calls if CALL not in text else []
        chat.append((role, "\n".join([*([text] if text else []), *map(_written, written)]), calls))
    return schemas, chat


def _calls_in_text(text: str, where: str) -> tuple[str, list]:
    """Return an assistant's text and the calls in it: bare, in `<tool_call>`, or as `<TOOLCALL>[...]</TOOLCALL>`.

    Blocks of `<tool_call>` stay in the text. Raises MalformedRow for a block that cannot be read: without its calls the
    row would say that none is right.
    """
    if bare := _bare_calls(text):
        return "", bare
    blocks = list(call_blocks(text))
    bodies = [block.body for block in blocks if block.closed] or _UPPER_CALL.findall(text)
    if not bodies:
        if any(not block.closed for block in blocks) or "<TOOLCALL>" in text:
            raise MalformedRow(f"a call in the text of {where} is never closed")
        return text, []
    try:
        calls = [call for body in bodies for call in block_values(body)]
    except ValueError as error:
        raise MalformedRow(f"a call in the text of {where} is not JSON") from error
    return (text if blocks else _UPPER_CALL.sub("", text).strip()), calls


def _bare_calls(text: str) -> list:
    """Return the calls of a text that is nothing else, as JSON or as ToolACE writes them; [] for any other."""
    if not text.startswith(("[", "{")):
        return []
    with suppress(ValueError):
        return [read_call(value) for value in block_values(text, lines=False)]
    with suppress(MalformedRow):
        return read_calls(text)
    return []


_UPPER_CALL = re.compile(r"<TOOLCALL>(.*?)</TOOLCALL>", re.DOTALL)


def _shown(turns: Sequence[_Said]) -> list[tuple[str, str]]:
    """(role, text) of each message."""
    return [(role, text) for role, text, _ in turns]


def _written(call: Mapping) -> str:
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _own_replies(calls: Sequence[dict], after: Sequence[_Said]) -> list[dict]:
    """The messages of the tool right after the calls, one for each in their order; else none."""
    return _replied(calls, [text for _, text, _ in takewhile(lambda message: message[0] == "tool", after)])


def _replied(calls: Sequence[dict], texts: Sequence[str]) -> list[dict]:
    """The calls with their replies; none when they cannot be matched."""
    return [call | {"reply": text} for call, text in zip(calls, texts, strict=True)] if len(texts) == len(calls) else []


def conversation_problem(
    data_source: str,
    index: int,
    messages: Sequence[tuple[str, str]],
    schemas: list,
    calls: list,
    replies: Sequence = (),
) -> CallProblem:
    """Return the problem of a conversation. `calls`: the right ones, as rewards/call_truth.py has them.

    Raises MalformedRow where nobody asks anything.
    """
    question = next((text for role, text in messages if role == "user"), None)
    if question is None:
        raise MalformedRow("nothing is asked before the call")
    answer = json.dumps(calls, sort_keys=True, ensure_ascii=False)
    tools, replied = (json.dumps(part, ensure_ascii=False) for part in (schemas, list(replies)))
    return CallProblem(data_source, question, answer, index, tuple(messages), tools, replied)


def loosened(problem: CallProblem) -> CallProblem:
    """Return the problem with right calls whose texts compare loosely (rewards/call_truth.py)."""
    calls = json.loads(problem.answer)
    if not isinstance(calls, list):
        return problem
    loose = [call | {"texts": "loose"} for call in calls]
    return replace(problem, answer=json.dumps(loose, sort_keys=True, ensure_ascii=False))


def _calls(calls: Any, where: str, schemas: Sequence[Mapping]) -> list[dict]:
    """The calls as [{"name", "arguments"}], each of a tool that `schemas` describe and fitting its parameters."""
    if not isinstance(calls, list) or not calls:
        raise MalformedRow(f"{where} holds no call")
    parameters = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}
    checked = []
    for call in calls:
        try:
            known = read_call(call)
        except ValueError as error:
            raise MalformedRow(f"{where}: {error}") from error
        if known["name"] not in parameters:
            raise MalformedRow(f"a call of {where} names a function that the row does not describe")
        if argument_error(parameters[known["name"]], known["arguments"]):
            raise MalformedRow(f"a call of {where} does not fit the function's own description")
        checked.append(known)
    try:
        json.dumps(checked, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError):
        raise MalformedRow(f"a call of {where} holds what JSON cannot") from None
    return checked


def _replies(calls: Sequence[dict], after: tuple[str, str] | None) -> list[dict]:
    """The recorded reply of each call, from the tool's turn after it."""
    results = None
    if after is not None and after[0] == "tool":
        with suppress(ValueError):
            results = json.loads(after[1])
    texts = [json.dumps(reply, ensure_ascii=False) for reply in results] if isinstance(results, list) else []
    return _replied(calls, texts)


def _system_functions(system: str) -> Any:
    """The first JSON list of objects in a system prompt."""
    for start in _LIST.finditer(system):
        try:
            return json.JSONDecoder().raw_decode(system, start.start())[0]
        except (ValueError, RecursionError):
            continue
    raise MalformedRow("system holds no JSON list of functions")


def _json(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise MalformedRow(f"{name} is not JSON") from None


def _text(value: Any, name: str) -> str:
    text = text_field(value, name).strip()
    if not text:
        raise MalformedRow(f"{name} is empty")
    return text


_NAME = re.compile(r"\s*+(?P<name>[^\s\[\](),='\"][^\[\](),='\"]*+)\(")
_NEXT = re.compile(r"\s*+(,|\Z)")
_CONSTANTS = {"true": True, "false": False, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}
# A bracket or a string, also one that does not end.
_BRACKET = re.compile(r"""[()\[\]{}]|'(?>(?:\\.|[^'\\])*)'?|"(?>(?:\\.|[^"\\])*)"?""", re.DOTALL)


def read_calls(text: str) -> list[dict]:
    """The calls as [{"name", "arguments"}]. Names may hold spaces; arguments are Python's or JSON's literals.

    Raises MalformedRow for anything else, such as an argument without a name or a value that is no literal.
    """
    text = text.strip()
    body, calls = text[1:-1], []
    match = _NAME.match(body) if text.startswith("[") and text.endswith("]") else None
    while match:
        end = _closing(body, match.end() - 1)
        calls.append({"name": match["name"].rstrip(), "arguments": _arguments(body[match.end() : end])})
        follows = _NEXT.match(body, end + 1)
        if follows and not follows[1]:
            return calls
        match = follows and _NAME.match(body, follows.end())
    raise MalformedRow("a call is not written as [name(argument=value), ...]")


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` closes, brackets inside strings left out of the count."""
    expected: list[str] = []
    for bracket in _BRACKET.finditer(text, opening):
        if bracket[0] in _CLOSING:
            expected.append(_CLOSING[bracket[0]])
        elif expected and bracket[0] == expected[-1]:
            expected.pop()
            if not expected:
                return bracket.start()
    raise MalformedRow("a call has a bracket that is never closed")


def _arguments(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call) and not call.args and all(keyword.arg for keyword in call.keywords):
            return {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        pass  # reported below, like what is no call
    raise MalformedRow("a call's arguments are not Python literals by name")


def _literal(node: ast.expr) -> Any:
    value = ast.literal_eval(_Constants().visit(ast.fix_missing_locations(node)))
    return list(value) if isinstance(value, tuple) else value


class _Constants(ast.NodeTransformer):
    """JSON's true, false and null as Python's; raises KeyError for any other name."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:  # noqa: N802, the name that ast asks for
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)
