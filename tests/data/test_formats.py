"""What counts as a call, what does not, and which chat templates can be used."""

import json

import pytest
from chatml_tokenizer import TEMPLATE, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.formats import get_format
from retool_mcore.data.segments import render_segments
from retool_mcore.errors import UserError

TOKENIZER = make_tokenizer()
TEXT, HERMES, NONE = (get_format(name, TOKENIZER) for name in ("text", "hermes", "none"))


@pytest.mark.parametrize(
    "turn, code",
    [
        ("<code>\n```python\nprint(1)\n```\n</code>", "print(1)"),
        ("<code>```py\nprint(1)```</code>", "print(1)"),
        ("<code>\nprint(1)\n</code>", "print(1)"),
        ("<code> print(1) </code>\n\n", "print(1)"),
        ("I use <code> now: <code>\n```\n  a\n\n  b\n```\n</code>", "  a\n\n  b"),
        ("<code>\n```python\ns = '''\n```\n'''\n```\n</code>", "s = '''\n```\n'''"),
        ("<code>1</code><code>2</code>", "1"),
    ],
)
def test_text_calls(turn, code):
    (call,) = TEXT.parse(turn)
    assert (call.code, call.error) == (code, None)
    assert turn[call.start :].startswith("<code>")


@pytest.mark.parametrize("turn", ["</code>", "x </code> <code>", "<code></code>", "<code>\n```python\n```\n</code>"])
def test_malformed_text_calls(turn):
    (call,) = TEXT.parse(turn)
    assert call.code is None and call.error.startswith("Error: ")


@pytest.mark.parametrize("turn", ["", "the answer is 3<|im_end|>", "<code>\nprint(1)<|im_end|>"])
def test_final_answers_hold_no_call(turn):
    assert TEXT.parse(turn) == HERMES.parse(turn) == []


def test_hermes_calls_in_order():
    turn = "a" + "".join(HERMES.turn_text("", f'print("{n}")\n') for n in range(3)) + "<|im_end|>"
    calls = HERMES.parse(turn)
    assert [call.code for call in calls] == [f'print("{n}")\n' for n in range(3)]
    assert all(turn[call.start :].startswith("<tool_call>") for call in calls)


@pytest.mark.parametrize(
    "body, reason",
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("1" * 5000, "not valid JSON"),
        ("[]", "write one call, a JSON object"),
        ('{"name": "search", "arguments": {"code": "1"}}', "unknown tool 'search'"),
        ('{"name": "code_interpreter"}', "the arguments of code_interpreter must be a JSON object"),
        ('{"name": "code_interpreter", "arguments": "1"}', "the arguments of code_interpreter must be a JSON object"),
        ('{"name": "code_interpreter", "arguments": {"code": 1}}', "do not fit its schema: code: 1 is not of type"),
        ('{"name": "code_interpreter", "arguments": {}}', "do not fit its schema: 'code' is a required property"),
        ('{"name": "code_interpreter", "arguments": {"code": "\\n"}}', "program is empty"),
        ('{"name": "code_interpreter", "arguments": {"code": "\\udc00"}}', "surrogate"),
    ],
)
def test_malformed_hermes_calls(body, reason):
    (call,) = HERMES.parse(f"<tool_call>{body}</tool_call>")
    assert call.code is None and reason in call.error and len(call.error) < 300


def test_a_name_that_is_no_text_is_not_kept():
    """A record could not be written with it."""
    (call,) = HERMES.parse('<tool_call>{"name": "\\ud800", "arguments": {"code": "1"}}</tool_call>')
    assert call.name is None and "unknown tool" in call.error and call.error.encode()


def test_an_unclosed_hermes_call_is_malformed_only_when_the_turn_ended():
    assert HERMES.parse("<tool_call>{") == []
    assert "without </tool_call>" in HERMES.parse("<tool_call>{<|im_end|>")[0].error


def test_without_a_tool_nothing_is_a_call():
    assert NONE.parse("<code>1</code><tool_call>{}</tool_call>") == []
    assert NONE.stop == HERMES.stop == () and TEXT.stop == ("</code>",)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(st.text(max_size=60).filter(str.strip), st.text(alphabet="ab \n.", max_size=10))
def test_a_rendered_call_is_read_back(code, text):
    for fmt in (TEXT, HERMES):
        if fmt is TEXT and ("code>" in code or code.strip().startswith("```")):
            continue
        assert [call.code for call in fmt.parse(fmt.turn_text(text, code))] == [code]


def test_the_tiny_fixed_text_of_an_observation():
    assert TOKENIZER.decode(TEXT.observation_ids(["3\n"])) == "\n<interpreter>\n3\n</interpreter>\n"
    assert TOKENIZER.decode(TEXT.observation_ids([""])) == "\n<interpreter>\n\n</interpreter>\n"
    replies = "\n<tool_response>\n3\n</tool_response>\n<tool_response>\n4\n</tool_response>"
    expected = f"\n<|im_start|>user{replies}<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.decode(HERMES.observation_ids(["3", "4"])) == expected


def segment(kind, text):
    return {"kind": kind, "text": text}


def test_mask_and_spans_of_rendered_segments():
    segments = [
        segment("text", "So:\n"),
        segment("code", "print(1)"),
        segment("observation", "1"),
        segment("text", "1."),
    ]
    for fmt in (TEXT, HERMES):
        ids, mask, spans = render_segments(fmt, TOKENIZER, segments)
        assert [kind for kind, _, _ in spans] == ["policy", "observation", "policy"]
        for kind, start, end in spans:
            assert mask[start:end] == [int(kind == "policy")] * (end - start)
        masked = TOKENIZER.decode([token for token, m in zip(ids, mask, strict=True) if not m])
        assert masked == TOKENIZER.decode(fmt.observation_ids(["1"]))
        assert ids[-1] == TOKENIZER.eos_token_id and mask[-1] == 1
    ids, mask, _ = render_segments(NONE, TOKENIZER, segments)
    assert TOKENIZER.decode(ids) == "So:\n1.<|im_end|>" and set(mask) == {1}


@pytest.mark.parametrize(
    "segments",
    [
        [],
        [segment("code", "1")],
        [segment("code", "1"), segment("text", "2")],
        [segment("observation", "1")],
        [segment("html", "1")],
        [segment("code", "print(1)\n</code>"), segment("observation", "1")],
        [segment("text", "mind </code>")],
        [segment("code", " "), segment("observation", "1")],
    ],
)
def test_segments_that_the_rollout_would_read_otherwise_are_refused(segments):
    with pytest.raises(UserError):
        render_segments(TEXT, TOKENIZER, segments)


def test_a_base_models_eos_token_is_not_its_end_of_turn():
    tokenizer = make_tokenizer()
    tokenizer.eos_token = "<|endoftext|>"
    fmt = get_format("text", tokenizer)
    assert tokenizer.convert_ids_to_tokens(fmt.eos_id) == "<|im_end|>"
    assert tokenizer.eos_token_id in fmt.eos_ids


@pytest.mark.parametrize(
    "template, reason",
    [
        (TEMPLATE.replace("+ message.content }}", "+ message.content + '!' }}"), "special token"),
        (TEMPLATE.replace("assistant\\n' }}{%- endif", "assistant\\n<think>' }}{%- endif"), "generation prompt"),
        (
            TEMPLATE.replace(
                "+ message.content }}", "+ message.content + ('' if messages[-1].role != 'tool' else '!') }}"
            ),
            "earlier turns",
        ),
        (None, "no chat template"),
    ],
)
def test_unfit_chat_templates_are_refused(template, reason):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=reason):
        get_format("hermes", tokenizer)


def test_unknown_formats_are_refused():
    with pytest.raises(UserError, match="text, hermes, none"):
        get_format("json", TOKENIZER)


def test_the_prompt_shows_the_tool_only_where_there_is_one():
    messages = [{"role": "user", "content": "hi"}]
    schema = json.dumps(HERMES.tools[0])
    assert schema in TOKENIZER.decode(HERMES.prompt_ids(messages))
    assert TOKENIZER.decode(TEXT.prompt_ids(messages)).endswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "code_interpreter" not in TOKENIZER.decode(TEXT.prompt_ids(messages))
