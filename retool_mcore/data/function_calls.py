"""Function-calling data sets: a row becomes conversations that the policy must answer with the right calls.

A row is dropped when its calls name a tool that it does not describe, or do not fit that tool's JSON schema: the
policy would be told that the right call is wrong. ToolACE writes calls as Python text (`read_calls`).
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from retool_mcore.data.function_schema import argument_error, tool_schemas
from retool_mcore.data.records import CallProblem, MalformedRow, Segment, Trace, at, field, text_field
from retool_mcore.errors import UserError

ABILITY = "function_calling"  # the column `ability` of such rows
ANSWERS = "possible_answer"  # the folder beside BFCL's questions that holds the ground truth
TURNS = 100  # indices that a row's conversations have: row * TURNS + turn

_LIST = re.compile(r"\[\s*\{")


def xlam_problem(row: dict, data_source: str, index: int) -> CallProblem:
    """A row of xLAM (APIGen, arXiv 2406.18518): `query`, and `tools` and `answers` as JSON texts."""
    question = _text(field(row, "query", "row"), "query")
    schemas = tool_schemas(_json(field(row, "tools", "row"), "tools"), "tools")
    calls = _calls(_json(field(row, "answers", "row"), "answers"), "answers", schemas)
    return _problem(data_source, index, [("user", question)], schemas, calls)


def toolace_problems(row: dict, data_source: str, index: int) -> list[CallProblem]:
    """A row of ToolACE (arXiv 2409.00920), one problem for each assistant turn that calls, on the turns before it.

    `system` holds the functions as a JSON list; `conversations` are {from, value} with from user, assistant or tool.
    The system prompt itself, which asks for calls as Python text, is left out: the prompt template takes its place.
    """
    schemas = tool_schemas(_system_functions(text_field(field(row, "system", "row"), "system")), "system")
    turns = field(row, "conversations", "row")
    if not isinstance(turns, list) or not 0 < len(turns) <= TURNS:
        raise MalformedRow(f"conversations is no list of 1 to {TURNS} turns")
    said = [(field(t, "from", "a turn"), text_field(field(t, "value", "a turn"), "a turn's value")) for t in turns]
    messages: list[tuple[str, str]] = []
    problems = []
    for number, (role, text) in enumerate(said):
        if role not in ("user", "assistant", "tool"):
            raise MalformedRow("a turn is from another than user, assistant or tool")
        if role != "assistant" or not text.lstrip().startswith("["):
            messages.append((role, text.strip()))
            continue
        calls = _calls(read_calls(text), "a turn", schemas)
        replies = _replies(calls, said[number + 1] if number + 1 < len(said) else None)
        problems.append(_problem(data_source, index * TURNS + number, messages, schemas, calls, replies))
        messages.append((role, "\n".join(map(_written, calls))))
    if not problems:
        raise MalformedRow("no turn calls a function")
    return problems


def own_call_problems(
    row: dict, data_source: str, index: int, *, question: str, answer: str | None, messages: str, tools: str
) -> list[CallProblem]:
    """A row of the user's own whose functions are under `tools`; the other names are columns, too (dotted paths).

    With a chat under `messages` each assistant message that calls is a problem on the messages before it. A row without
    that column has a text under `question` and its calls under `answer`, as xLAM's. Raises MalformedRow.
    """
    if not isinstance(row, dict) or messages.partition(".")[0] not in row:
        if answer is None:
            raise MalformedRow(f"the row has no column {messages!r}, and data.file.answer is null")
        xlam = {"query": at(row, question), "tools": at(row, tools), "answers": at(row, answer)}
        return [xlam_problem(xlam, data_source, index)]
    schemas, said = _chat(row, messages, tools)
    problems = [
        _problem(data_source, index * TURNS + n, _shown(said[:n]), schemas, calls, _own_replies(calls, said[n + 1 :]))
        for n, (role, _, calls) in enumerate(said)
        if calls
    ]
    if not problems:
        raise MalformedRow("no assistant message calls a function")
    return problems


def own_call_traces(row: dict, data_source: str, index: int, *, messages: str, tools: str) -> list[Trace]:
    """As `own_call_problems` of a chat: a trace for each assistant message, what it says and calls, on those before."""
    schemas, said = _chat(row, messages, tools)
    shown, listed = _shown(said), json.dumps(schemas, ensure_ascii=False)
    question = next((text for role, text in shown if role == "user"), "")
    traces = [
        Trace(data_source, question, (Segment("text", shown[n][1]),), index * TURNS + n, listed, tuple(shown[:n]))
        for n, (role, _, _) in enumerate(said)
        if role == "assistant"
    ]
    if not traces:
        raise MalformedRow("no message is the assistant's")
    return traces


_Said = tuple[str, str, list[dict]]  # role, text, calls


def _chat(row: dict, messages: str, tools: str) -> tuple[list[dict], list[_Said]]:
    schemas, turns = tool_schemas(_json(at(row, tools), tools), tools), at(row, messages)
    if not isinstance(turns, list) or not 0 < len(turns) <= TURNS:
        raise MalformedRow(f"{messages} is no list of 1 to {TURNS} messages")
    said: list[_Said] = []
    for number, turn in enumerate(turns):
        role, where = field(turn, "role", f"message {number}"), f"message {number}"
        if role not in ("system", "user", "assistant", "tool"):
            raise MalformedRow(f"{where} is of the role {role!r}, expected system, user, assistant or tool")
        made = (turn.get("tool_calls") or []) if role == "assistant" else []
        content = "" if made and turn.get("content") is None else field(turn, "content", where)
        text = text_field(content, f"the content of {where}").strip()
        if not isinstance(made, list) or not all(isinstance(call, dict) for call in made):
            raise MalformedRow(f"tool_calls of {where} is no list of calls")
        calls = _calls([call.get("function", call) for call in made], where, schemas) if made else []
        if not text and not calls and role != "tool":
            raise MalformedRow(f"{where} is empty")
        if role == "assistant" and not any(before == "user" for before, _, _ in said):
            raise MalformedRow("nothing is asked before the assistant's first message")
        said.append((role, text, calls))
    return schemas, said


def _shown(said: Sequence[_Said]) -> list[tuple[str, str]]:
    """(role, text) of each message, its calls as the hermes format writes them."""
    return [(role, "\n".join([*([text] if text else []), *map(_written, calls)])) for role, text, calls in said]


def _written(call: Mapping) -> str:
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def _own_replies(calls: Sequence[dict], after: Sequence[_Said]) -> list[dict]:
    """The messages of the tool right after the calls, one for each in their order; else none."""
    return _replied(calls, [text for _, text, _ in takewhile(lambda message: message[0] == "tool", after)])


def _replied(calls: Sequence[dict], texts: Sequence[str]) -> list[dict]:
    """The calls with their replies; none when they cannot be told apart."""
    return [call | {"reply": text} for call, text in zip(calls, texts, strict=True)] if len(texts) == len(calls) else []


def bfcl_problem(row: dict, data_source: str, index: int) -> CallProblem:
    """A row of the Berkeley leaderboard's single-turn categories: `question`, `function`, `ground_truth`.

    `ground_truth` lists for each call and parameter the values that count as right, "" for one that may be left out.
    Here the first of them is the truth, so a policy that gives another is judged wrong though the leaderboard would
    not: figures are a lower bound of its own.
    """
    turns = field(row, "question", "row")
    turns = [turns] if isinstance(turns, list) and turns and isinstance(turns[0], dict) else turns
    if not isinstance(turns, list) or len(turns) != 1 or not isinstance(turns[0], list):
        raise MalformedRow("question is not one turn, a list of {role, content}")
    messages = [
        (str(field(message, "role", "a message")), _text(field(message, "content", "a message"), "a message"))
        for message in turns[0]
    ]
    functions = field(row, "function", "row")
    schemas = tool_schemas(functions if isinstance(functions, list) else [functions], "function")
    truth = field(row, "ground_truth", "row")
    if not isinstance(truth, list) or not all(isinstance(call, dict) and len(call) == 1 for call in truth):
        raise MalformedRow("ground_truth is not a list of {function: {parameter: [values]}}")
    calls = [{"name": name, "arguments": _accepted(values)} for call in truth for name, values in call.items()]
    return _problem(data_source, index, messages, schemas, _calls(calls, "ground_truth", schemas))


def with_answers(rows: Iterator[Any], file: Path) -> Iterator[Any]:
    """BFCL's rows with the `ground_truth` that the leaderboard keeps in possible_answer/ beside the questions, by id.

    Rows that have one already stay as they are. Raises UserError when they have none and there is no such file.
    """
    answers: dict[str, Any] | None = None
    for row in rows:
        if isinstance(row, dict) and "ground_truth" not in row:
            if answers is None:
                answers = _answers(file.parent / ANSWERS / file.name, file)
            if row.get("id") in answers:
                row = row | {"ground_truth": answers[row["id"]]}
        yield row


def _answers(path: Path, questions: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(
            f"{questions} has no ground_truth, and there is no {path.parent.name}/{path.name} beside it: "
            "copy the leaderboard's whole data folder."
        )
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        return {row["id"]: row["ground_truth"] for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} must hold one JSON object a line with id and ground_truth ({error}).") from error


def _problem(
    data_source: str,
    index: int,
    messages: Sequence[tuple[str, str]],
    schemas: list,
    calls: list,
    replies: Sequence = (),
) -> CallProblem:
    question = next((text for role, text in messages if role == "user"), None)
    if question is None:
        raise MalformedRow("nothing is asked before the call")
    answer = json.dumps(calls, sort_keys=True, ensure_ascii=False)
    tools, replied = (json.dumps(part, ensure_ascii=False) for part in (schemas, list(replies)))
    return CallProblem(data_source, question, answer, index, tuple(messages), tools, replied)


def _calls(calls: Any, where: str, schemas: Sequence[Mapping]) -> list[dict]:
    """The calls as [{"name", "arguments"}], each of a tool that `schemas` describe and fitting its parameters."""
    if not isinstance(calls, list) or not calls:
        raise MalformedRow(f"{where} holds no call")
    parameters = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas}
    found = []
    for call in calls:
        name, arguments = (field(call, key, f"a call of {where}") for key in ("name", "arguments"))
        arguments = _json(arguments, f"the arguments of a call of {where}")
        if not isinstance(arguments, dict):
            raise MalformedRow(f"the arguments of a call of {where} are no object")
        if name not in parameters:
            raise MalformedRow(f"a call of {where} names a function that the row does not describe")
        if argument_error(parameters[name], arguments):
            raise MalformedRow(f"a call of {where} does not fit the function's own description")
        found.append({"name": name, "arguments": arguments})
    try:
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError):
        raise MalformedRow(f"a call of {where} holds what JSON cannot") from None
    return found


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


def _accepted(values: Any) -> Any:
    """The first accepted value of each parameter, those left out that need not be given."""
    if not isinstance(values, dict) or not all(isinstance(options, list) and options for options in values.values()):
        raise MalformedRow("ground_truth is not a list of {function: {parameter: [values]}}")
    given = {name: [option for option in options if option != ""] for name, options in values.items()}
    return {name: _inner(options[0]) for name, options in given.items() if options}


def _inner(value: Any) -> Any:
    # Objects inside an accepted value list their own accepted values again.
    if isinstance(value, dict) and all(isinstance(options, list) and options for options in value.values()):
        return _accepted(value)
    return [_inner(item) for item in value] if isinstance(value, list) else value


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
    for found in _BRACKET.finditer(text, opening):
        if found[0] in _CLOSING:
            expected.append(_CLOSING[found[0]])
        elif expected and found[0] == expected[-1]:
            expected.pop()
            if not expected:
                return found.start()
    raise MalformedRow("a call has a bracket that is never closed")


def _arguments(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if isinstance(call, ast.Call) and not call.args and all(keyword.arg for keyword in call.keywords):
            return {keyword.arg: _literal(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError):
        pass  # told below, as what is no call is
    raise MalformedRow("a call's arguments are not Python literals by name")


def _literal(node: ast.expr) -> Any:
    value = ast.literal_eval(_Constants().visit(ast.fix_missing_locations(node)))
    return list(value) if isinstance(value, tuple) else value


class _Constants(ast.NodeTransformer):
    """JSON's true, false and null as Python's; raises KeyError for any other name."""

    def visit_Name(self, node: ast.Name) -> ast.Constant:  # noqa: N802, the name that ast asks for
        return ast.copy_location(ast.Constant(_CONSTANTS[node.id]), node)
