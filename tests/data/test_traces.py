import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.records import MalformedRow, Segment
from retool_mcore.data.traces import extract_question, text_trace, tool_call_trace, without_answer_tags

USER = (
    "Solve the following problem step by step. Each code snippet is wrapped with `<code>\n```python\ncode snippet\n"
    "```\n</code>`.\n<answer>\n\\boxed{'The final answer goes here.'}\n</answer>\n\n*user question:*\n%s\n\n"
    "Remember to place the final answer in the last part using the format: \n"
    "<answer>\n\\boxed{'The final answer goes here.'}\n</answer>"
)
SOLUTION = (
    "Let me compute.\n<code>\n```python\nfor i in range(2):\n    print(i)\n```\n</code>\n"
    "<interpreter>\n0\n1\n</interpreter>\n\nAnd again:\n\n<code>\n```python\nprint(1/0)\n```\n</code>\n"
    "<interpreter>\nZeroDivisionError: division by zero\n</interpreter>\nSo it is one.\n\n"
    "<answer>\n\\boxed{\\frac{1}{1}}\n</answer>"
)
SEGMENTS = (
    Segment("text", "Let me compute.\n"),
    Segment("code", "for i in range(2):\n    print(i)"),
    Segment("observation", "0\n1"),
    Segment("text", "And again:\n"),
    Segment("code", "print(1/0)"),
    Segment("observation", "ZeroDivisionError: division by zero"),
    Segment("text", "So it is one.\n\n<answer>\n\\boxed{\\frac{1}{1}}\n</answer>"),
)


def text_row(solution=SOLUTION, question="What is 1 + 0?"):
    return {"messages": [{"role": "user", "content": USER % question}, {"role": "assistant", "content": solution}]}


def message(role, content, code=None, *, call_id=None, arguments=None):
    calls = None
    if code is not None or arguments is not None:
        function = {"name": "code_interpreter", "arguments": {"code": code} if arguments is None else arguments}
        calls = [{"id": call_id, "type": "function", "function": function}]
    return {"role": role, "content": content, "name": None, "tool_call_id": call_id, "tool_calls": calls}


def tool_row():
    question = (
        "Solve the following problem.\n\n**user question:**\nWhat is 1 + 0?\n\nRemember to place the final answer in "
    )
    question += "the last part using the format: \n<answer>\n\\boxed{'The final answer goes here.'}\n</answer>"
    return {
        "messages": [
            message("system", "You are a helpful assistant."),
            message("user", question),
            message("assistant", "Let me compute.", "for i in range(2):\n    print(i)", call_id="call_0"),
            message("tool", "0\n1", call_id="call_0"),
            message("assistant", "And again:", "print(1/0)", call_id="call_1"),
            message("tool", "ZeroDivisionError: division by zero", call_id="call_1"),
            message("assistant", "So it is one.\n\n<answer>\n\\boxed{\\frac{1}{1}}\n</answer>"),
        ],
        "tools": [{"type": "function", "function": {"name": "code_interpreter"}}],
    }


def test_both_published_forms_give_the_same_trace():
    from_text = text_trace(text_row(), "retool_sft", 4)
    assert from_text.segments == SEGMENTS
    assert (from_text.question, from_text.data_source, from_text.index) == ("What is 1 + 0?", "retool_sft", 4)
    assert tool_call_trace(tool_row(), "retool_sft", 4) == from_text


def test_windows_line_ends_change_nothing():
    row = text_row(SOLUTION.replace("\n", "\r\n"))
    row["messages"][0]["content"] = row["messages"][0]["content"].replace("\n", "\r\n")
    assert text_trace(row, "retool_sft", 4) == text_trace(text_row(), "retool_sft", 4)


def test_a_trace_may_start_with_code_and_observations_may_be_empty():
    row = text_row(
        "<code>x = 'µ²'</code><interpreter>\n</interpreter><code>\n```python\nx\n```\n</code>\n"
        "<interpreter>\n  1 2\n 30 4\n</interpreter>\n<answer>\\boxed{2}</answer>"
    )
    segments = text_trace(row, "s", 0).segments
    assert [s.kind for s in segments] == ["code", "observation", "code", "observation", "text"]
    assert [s.text for s in segments[:4]] == ["x = 'µ²'", "", "x", "  1 2\n 30 4"]


BROKEN_TEXTS = [
    ("No tags at all.", "missing final answer"),
    ("It is \\boxed{1}.", "does not end in an <answer> block"),
    ("<answer>one</answer>", "no .boxed"),
    ("<answer>\\boxed{1</answer>", "no .boxed"),
    ("<answer>\\boxed{ }</answer>", "no .boxed"),
    ("It is \\boxed{1}. <answer>one</answer>", "no .boxed"),
    ("<answer>\\boxed{1}", "expected one <answer> and one </answer>"),
    ("</answer>\\boxed{1}<answer>", "expected one <answer> and one </answer>"),
    ("<answer>\\boxed{1}</answer><answer>\\boxed{2}</answer>", "expected one <answer> and one </answer>"),
    ("<answer>\\boxed{1}</answer> done", "text follows </answer>"),
    ("<code>1</code><interpreter>1</interpreter>", "does not end in text"),
    ("<code>1</code> <answer>\\boxed{1}</answer>", "code without observation: text stands between"),
    ("<code>1</code>", "code without observation: the last"),
    ("<code>1</code><code>2</code>", "code without observation: a <code> block is followed by another"),
    ("<interpreter>1</interpreter><answer>\\boxed{1}</answer>", "observation without code"),
    ("<code>1</code><interpreter>1</interpreter><interpreter>1</interpreter>", "observation without code"),
    ("<code>1", "unbalanced tags: the last <code>"),
    ("<code>1</code><interpreter>1", "unbalanced tags: the last <interpreter>"),
    ("<code>1<code>2</code></code>", "unbalanced tags: <code>"),
    ("1</code>", "unbalanced tags: </code>"),
    ("<code>1<interpreter>1</interpreter></code>", "unbalanced tags: <interpreter>"),
    ("<code> \n</code><interpreter>1</interpreter>", "empty code block"),
    ("<code>```python\n\n```</code><interpreter>1</interpreter>", "empty code block"),
    ("<code>```python\n1</code><interpreter>1</interpreter>", "fence is not closed"),
    ("<code>```sh\nls\n```</code><interpreter>1</interpreter>", "in 'sh', expected Python"),
    ("<code>```python\n1\n```\n```python\n2\n```</code><interpreter>1</interpreter>", "several ``` fences"),
    ("<answer>\\boxed{1}</answer><code>1</code><interpreter>1</interpreter>\\boxed{1}", "before the end of the trace"),
    ("", "missing final answer"),
]


@pytest.mark.parametrize(("solution", "reason"), BROKEN_TEXTS)
def test_a_broken_solution_is_refused_with_its_reason(solution, reason):
    with pytest.raises(MalformedRow, match=reason):
        text_trace(text_row(solution), "s", 0)


BROKEN_ROWS = [
    ({}, "row has no field 'messages'"),
    ({"messages": None}, "messages is null"),
    ({"messages": "text"}, "messages is str"),
    ({"messages": [None]}, "message 0 is null"),
    ({"messages": [{"role": None, "content": "x"}]}, "role of message 0 is null"),
    ({"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "x"}]}, "user content is int"),
    (
        {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": None}]},
        "assistant content is null",
    ),
    ({"messages": [{"role": "user", "content": "Q?"}]}, r"roles \['user'\]"),
    ({"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "x"}]}, "no '.user question:.'"),
]


@pytest.mark.parametrize(("row", "reason"), BROKEN_ROWS)
def test_a_broken_row_is_refused_with_its_reason(row, reason):
    with pytest.raises(MalformedRow, match=reason):
        text_trace(row, "s", 0)


@pytest.mark.parametrize("parse_row", [text_row(question=" \n"), text_row(question="<answer></answer>")])
def test_an_empty_question_is_refused(parse_row):
    with pytest.raises(MalformedRow, match="empty question"):
        text_trace(parse_row, "s", 0)


@pytest.mark.parametrize(
    "text",
    [
        "Q {x} ²?",
        "rules\n*user question:*\nQ {x} ²?",
        "rules\n**user question:** \nAnswer the following Math Problem and put the answer in the format of "
        "\\boxed{answer}\n\nQ {x} ²?\n\n\nRemember to place the final answer in the last part using the format: \n"
        "<answer>\n\\boxed{{'The final answer goes here.'}}\n</answer>\n",
        "Q {x} ²?\nThe answer format must be: \\boxed{'The final answer goes here.'}",
        "*user question:*\n<answer>Q {x} ²?</answer>",
    ],
)
def test_the_bare_question_is_found_in_every_published_wrapping(text):
    assert extract_question(text) == "Q {x} ²?"


def edit_tool_row(position, **changes):
    row = tool_row()
    row["messages"][position] |= changes
    return row


def test_tool_call_arguments_may_be_json_text_and_code_may_be_fenced():
    arguments = json.dumps({"code": "```python\nfor i in range(2):\n    print(i)\n```"})
    call = message("assistant", "Let me compute.", arguments=arguments, call_id="call_0")
    assert tool_call_trace(edit_tool_row(2, **call), "s", 0).segments == SEGMENTS


def test_a_tool_call_needs_no_text_and_no_ids():
    row = edit_tool_row(2, content=None)
    for entry in row["messages"]:
        entry["tool_call_id"] = None
    assert tool_call_trace(row, "s", 0).segments == SEGMENTS[1:]


TWO_CALLS = message("assistant", "x", "1")["tool_calls"] * 2
BROKEN_TOOL_ROWS = [
    (edit_tool_row(1, role="tool"), "not the user's"),
    (edit_tool_row(1, content=None), "user content is null"),
    (edit_tool_row(1, content="**user question:**\n"), "empty question"),
    (edit_tool_row(2, tool_calls=None), "tool message 2 follows no tool call"),
    (edit_tool_row(2, tool_calls=TWO_CALLS), "makes 2 tool calls"),
    (edit_tool_row(2, tool_calls="call"), "makes str tool calls"),
    (edit_tool_row(2, tool_calls=[None]), "tool call of assistant message 1 is null"),
    (edit_tool_row(2, tool_calls=[{"function": {"name": "search", "arguments": {}}}]), "calls 'search'"),
    (edit_tool_row(2, **message("assistant", "x", arguments="{code", call_id="call_0")), "are not JSON"),
    (edit_tool_row(2, **message("assistant", "x", arguments={"code": None}, call_id="call_0")), "is null"),
    (edit_tool_row(2, **message("assistant", "x", arguments="[1]", call_id="call_0")), "is list, expected an object"),
    (edit_tool_row(2, content="x <interpreter>1</interpreter>"), "unbalanced tags"),
    (edit_tool_row(3, content=None), "tool message 2 content is null"),
    (edit_tool_row(3, tool_call_id="call_9"), "answers call 'call_9', expected 'call_0'"),
    (edit_tool_row(3, role="assistant"), "code without observation"),
    (edit_tool_row(3, role="user"), "only assistant and tool messages"),
    (edit_tool_row(6, content="I do not know."), "missing final answer"),
    (edit_tool_row(6, content=None), "content is null"),
    (edit_tool_row(6, **message("assistant", "\\boxed{1}", "1")), "the last tool call has no reply"),
    ({"messages": []}, "not the user's"),
]


@pytest.mark.parametrize(("row", "reason"), BROKEN_TOOL_ROWS)
def test_a_broken_conversation_is_refused_with_its_reason(row, reason):
    with pytest.raises(MalformedRow, match=reason):
        tool_call_trace(row, "s", 0)


def test_answer_tags_go_where_the_template_does_not_ask_for_them():
    stripped = without_answer_tags(SEGMENTS)
    assert stripped[:-1] == SEGMENTS[:-1]
    assert stripped[-1].text == "So it is one.\n\n\n\\boxed{\\frac{1}{1}}"


SAFE = st.text(st.characters(blacklist_characters="<>`\r", blacklist_categories=("Cs", "Cc")), min_size=1).filter(
    str.strip
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.tuples(SAFE, SAFE, SAFE), max_size=5))
def test_what_is_written_in_tags_comes_back_whole_and_in_order(blocks):
    solution = "".join(
        f"{text}\n<code>\n```python\n{code}\n```\n</code>\n<interpreter>\n{out}\n</interpreter>\n"
        for text, code, out in blocks
    )
    segments = text_trace(text_row(solution + "<answer>\\boxed{1}</answer>"), "s", 0).segments
    expected = [
        segment
        for text, code, out in blocks
        for segment in (("text", text.strip() + "\n"), ("code", code.rstrip()), ("observation", out.rstrip()))
    ]
    assert [(s.kind, s.text) for s in segments[:-1]] == expected
