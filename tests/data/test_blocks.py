"""What only names a tag neither opens nor closes a block: in prose, in strings and comments, in a call's JSON."""

import json
import time

import pytest
from chatml_tokenizer import make_tokenizer

from retool_mcore.data.formats import TOOL, TOOL_NAME, get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.rewards.math import score
from retool_mcore.rewards.tool_calls import judge, parse_calls, tool_n1, written_calls
from retool_mcore.rewards.toolrl import toolrl
from retool_mcore.rollout import trajectory

from recipe_samples import sample  # isort: skip

TOKENIZER = make_tokenizer()
TEXT, HERMES = (get_format(name, TOKENIZER) for name in ("text", "hermes"))


def prose(text):
    return trajectory.prose(text)


@pytest.mark.parametrize("end", ["", "<|im_end|>"])
@pytest.mark.parametrize("tag", ["<code>", "<interpreter>", "<tool_call>", "<tool_response>"])
@pytest.mark.parametrize(
    "sentence",
    [
        r"The {} above printed 42, so the result is \boxed{{42}}.",
        r"What {} showed agrees: \boxed{{42}}.",
        "It is in the last {}\nabove: \\boxed{{42}}.",
        r"`{}` gave \boxed{{42}}.",
        r"({}) \boxed{{42}}",
        r"Both {}s agree on \boxed{{42}}",
        "{}, then {} again.\n\n\\boxed{{42}}",
    ],
)
def test_an_answer_whose_sentence_names_a_tag_counts(sentence, tag, end):
    text = sentence.format(tag, tag) + end
    assert prose(text) == text and score(prose(text), "42")["score"] == 1.0
    for fmt in (TEXT, HERMES):
        assert fmt.parse(text) == []


@pytest.mark.parametrize(
    "block",
    [
        "<code>\n```python\nprint('\\boxed{1}",
        "<code>\nimport sympy\nx = '\\boxed{1}'",
        "<code> x = '\\boxed{1}'",
        "<code>print('\\boxed{1}')",
        "<code>\n\nfor i in range(3):\n  print('\\boxed{1}')",
        '<tool_call>\n{"name": "code_interpreter", "arguments": {"code": "print(\'\\\\boxed{1}\')',
        '<tool_call>{"name": "\\boxed{1}',
        "<interpreter>\n\\boxed{1}",
        "<tool_response>\n\\boxed{1}\n",
        "<interpreter>\\boxed{1}",
    ],
)
def test_half_a_block_is_no_answer(block):
    assert prose("So far: \n" + block).strip() == "So far:"
    assert prose("The <code> shows \\boxed{2}.\n" + block).strip() == "The <code> shows \\boxed{2}."


def test_prose_before_a_block_that_names_its_tag_stays():
    block = "<code>\n```python\nprint('\\boxed{1}')\n```\n</code>"
    assert prose(f"I use <code> for \\boxed{{2}}: {block}!") == "I use <code> for \\boxed{2}: !"
    output = "<interpreter>\n\\boxed{1}\n</interpreter>"
    assert prose(f"The <interpreter> said \\boxed{{2}}. {output}") == "The <interpreter> said \\boxed{2}. "
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    assert prose(f"With <tool_call> I ask: {call}.") == "With <tool_call> I ask: ."
    assert [found.error for found in HERMES.parse(f"With <tool_call> I ask: {HERMES.turn_text('', 'x')}")] == [None]


PROGRAMS = [
    "print('<b>' + '</tool_call>')",
    'print("</tool_call>")',
    r'print("a \"</tool_call>\" b", "\\")',
    "print('<tool_call>', '</tool_call>')",
    "# </tool_call>\nprint('''\n</tool_call>''')",
    'x = "{\\"a\\": [</tool_call>"',
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_closing_tag_in_a_string_of_a_call_does_not_end_it(program):
    turn = "".join(HERMES.turn_text("I compute.", text) + "\n" for text in (program, "print(1)", program))
    assert [(c.code, c.error) for c in HERMES.parse(turn + "<|im_end|>")] == [
        (code, None) for code in (program, "print(1)", program)
    ]
    assert "tool_call" not in prose(turn)
    call = {"name": "f", "arguments": {"code": program}}
    truth = json.dumps([call])
    assert written_calls(f"<tool_call>{json.dumps(call)}</tool_call>") == [call]
    as_list = f"<think>t</think>\n<tool_call>\n{json.dumps([call])}\n</tool_call>"
    as_line = f"<think>t</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    assert parse_calls(as_list) == [call] and judge(as_list, truth)["acc"] == judge(as_line, truth)["acc"] == 1.0
    assert tool_n1(sample(text=as_list, ground_truth=truth)) == 1.0
    assert toolrl(sample(text=as_line, ground_truth=truth)) == 4.0


def test_several_calls_of_one_block_may_hold_the_tag():
    tool = TOOL["function"] | {"name": "f", "parameters": {"type": "object"}}
    calls = [{"name": "f", "arguments": {"t": text}} for text in ("</tool_call>", "a", '"</tool_call>')]
    for body in (json.dumps(calls), "\n".join(map(json.dumps, calls))):
        found = HERMES.parse(f"<tool_call>\n{body}\n</tool_call><|im_end|>", [TOOL | {"function": tool}])
        assert [(call.error, call.arguments) for call in found] == [(None, call["arguments"]) for call in calls]


def test_what_is_no_json_ends_at_the_first_tag():
    good = HERMES.turn_text("", "print(1)")
    for bad in (
        '<tool_call>{"name": "</tool_call>',
        "<tool_call>nonsense</tool_call>",
        '<tool_call>{"a": </tool_call>',
    ):
        first, second = HERMES.parse(bad + good)
        assert "not valid JSON" in first.error and second.code == "print(1)"
    first, second = HERMES.parse('<tool_call>{"name": ' + good)
    assert "without </tool_call>" in first.error and second.code == "print(1)"
    assert second.name == TOOL_NAME


TEXT_PROGRAMS = [
    "print('</code>')",
    'print("<code>x</code>")',
    "# the </code> tag\nprint(1)",
    'x = """\n</code>\n"""\nprint(x)',
    "x = '''\n</code>'''",
    r"print('it\'s </code>')",
    'print(f"{x}</code>", 2)  # </code>',
]


@pytest.mark.parametrize("program", TEXT_PROGRAMS)
def test_a_closing_tag_in_a_string_or_comment_does_not_end_a_program(program):
    turn = TEXT.turn_text("Let's see.\n", program)
    assert [(call.code, call.error) for call in TEXT.parse(turn)] == [(program, None)]
    first = turn.index("</code>") + len("</code>")
    assert TEXT.goes_on(turn[:first]) and TEXT.parse(turn[:first]) == [] and not TEXT.goes_on(turn)
    assert prose(turn + "b").rstrip("b") == "Let's see.\n"
    segments = [("text", "a"), ("code", program), ("observation", "1"), ("text", "b")]
    render_segments(TEXT, TOKENIZER, [{"kind": kind, "text": text} for kind, text in segments])


@pytest.mark.parametrize(
    "turn",
    [
        "<code>print(1) # one</code>",
        "<code>print('it's')</code>",
        "<code>\n```python\nx = it's\n```\n</code>",
        '<code>\n```python\nx = """\n```\n</code>',
        "<code>\n```python\nprint(1)\n</code>",
        "<code>print('a</code>",
        "I use <code> isn't it <code>1</code>",
    ],
)
def test_every_other_closing_tag_ends_the_program(turn):
    assert not TEXT.goes_on(turn) and len(TEXT.parse(turn)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<code></code>" * 6000,
        "<code>\n```\n'" * 6000,
        "<tool_call>" * 7000,
        '<tool_call>"' * 6000 + "</tool_call>" * 6000,
        '<tool_call>["' * 6000,
        "<interpreter>" * 6000,
        "<interpreter><tool_response>" * 3000,
        '<code>"' + '\\"' * 40_000 + "\n</code>",
        "<code>\n```\n" + "'''" * 20_000 + "</code>",
        "<code>" + " " * 80_000,
    ],
)
def test_no_text_of_a_policy_takes_long_to_read(text):
    clock = time.process_time()
    prose(text), TEXT.parse(text), HERMES.parse(text), written_calls(text)
    assert time.process_time() - clock < 5
