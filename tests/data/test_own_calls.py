"""Rows that call functions, in the user's own files: chats with `messages` and `tools`, and xLAM's columns."""

import json

import pyarrow.parquet as pq
import pytest
from chatml_tokenizer import make_tokenizer
from function_rows import WHEN2CALL
from test_own_files import made, rows_of, write_jsonl

from retool_mcore.data.function_calls import own_call_problems
from retool_mcore.data.records import MalformedRow
from retool_mcore.data.schema import check_rl, check_sft
from retool_mcore.data.sft_dataset import ReToolSFTDataset
from retool_mcore.errors import UserError
from retool_mcore.rewards.tool_calls import judge

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Of today.", "parameters": PARAMETERS}}]
ASKED = {"role": "user", "content": "Weather?"}
COLUMNS = {"question": "question", "answer": "answer", "messages": "messages", "tools": "tools"}


def call(city, name="weather"):
    return {"id": f"c-{city}", "type": "function", "function": {"name": name, "arguments": json.dumps({"city": city})}}


def chat(city, *more):
    return {
        "tools": TOOLS,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"Weather in {city} and Oslo?"},
            {"role": "assistant", "content": None, "tool_calls": [call(city), call("Oslo")]},
            {"role": "tool", "tool_call_id": f"c-{city}", "content": "rain"},
            {"role": "tool", "tool_call_id": "c-Oslo", "content": "snow"},
            {"role": "assistant", "content": "Rain, and snow."},
            *more,
        ],
    }


def written(*cities):
    calls = [{"name": "weather", "arguments": {"city": city}} for city in cities]
    return "\n".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in calls)


def test_chats_become_problems_graded_on_their_calls(tmp_path, capsys):
    asks = {"role": "user", "content": "And in Lima?"}
    answers = {"role": "assistant", "content": "I look.", "tool_calls": [call("Lima")["function"]]}
    rows = [chat("Rome", asks, answers), *map(chat, ("Bonn", "Bern"))]
    rows += [chat("Kyiv") | {"tools": []}, chat("Riga", answers | {"tool_calls": [call("Lima", "climate")]})]
    path = write_jsonl(tmp_path / "calls.jsonl", rows)
    data = made(
        tmp_path, f"data.file.train={path}", "data.file.tools=tools", 'data.prompt="{question}"', "data.held_back=1",
        "data.test_share=0",
    )  # fmt: skip
    told = capsys.readouterr().out
    assert "calls: 6 rows read: 4 kept, 0 duplicates, 2 malformed" in told
    assert "malformed 1 x: tools is no list of functions; first row 3: " in told
    assert "malformed 1 x: a call of message 6 names a function that the row does not describe; first row 4: " in told
    (train,) = data.train_files
    check_rl(train)
    kept = {row["extra_info"]["index"]: row for row in rows_of(train, data.held_back_files)}
    assert sorted(kept) == [2, 7, 102, 202]
    first, last = kept[2], kept[7]
    assert [message["content"] for message in first["prompt"]] == ["Be brief.", "Weather in Rome and Oslo?"]
    assert first["ability"] == "function_calling" and json.loads(first["extra_info"]["tools"]) == TOOLS
    assert [one["reply"] for one in json.loads(first["extra_info"]["replies"])] == ["rain", "snow"]
    assert [message["role"] for message in last["prompt"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert last["prompt"][2]["content"] == written("Rome", "Oslo")
    truth = first["reward_model"]["ground_truth"]
    assert judge(written("Oslo", "Rome"), truth)["acc"] == 1.0 and judge(written("Oslo"), truth)["acc"] == 0.0
    assert judge(written("Lima"), last["reward_model"]["ground_truth"])["acc"] == 1.0


def test_xlams_columns_under_names_of_ones_own(tmp_path):
    flat = [{"name": "weather", "description": "Of today.", "parameters": {"city": {"type": "str"}}}]
    right = [json.dumps([{"name": "weather", "arguments": {"city": city}}]) for city in ("Rome", "Oslo", "Lima")]
    rows = [
        {"q": f"Weather {n}?", "fs": json.dumps(flat), "as": answer}
        for n, answer in enumerate(right)
    ]  # fmt: skip
    path = write_jsonl(tmp_path / "x.jsonl", rows)
    own = f"{{path: {path}, question: q, answer: as, tools: fs}}"
    data = made(tmp_path, f"data.file.train={own}", "data.held_back=1", "data.test_share=0", "data.prompt=tool_n1")
    for row in rows_of(*data.train_files):
        assert json.loads(row["reward_model"]["ground_truth"])[0]["name"] == "weather"
        assert json.loads(row["extra_info"]["tools"]) == TOOLS


def test_when2calls_rows_teach_when_to_call(tmp_path, capsys):
    path = write_jsonl(tmp_path / "when2call.jsonl", WHEN2CALL)
    data = made(
        tmp_path, f"data.file.train={path}", "data.file.tools=tools", 'data.prompt="{question}"', "data.held_back=1",
        "data.test_share=0",
    )  # fmt: skip
    told = capsys.readouterr().out
    assert "4 rows read: 4 kept" in told and "3 rows whose right answer is no call" in told
    truths = {row["extra_info"]["question"]: row["reward_model"]["ground_truth"] for row in rows_of(
        *data.train_files, data.held_back_files)}  # fmt: skip
    right = '<tool_call>{"name": "route", "arguments": {"to": "Rome"}}</tool_call>'
    for question, truth in truths.items():
        calls = "Rome" in question
        assert judge(right, truth)["acc"] == calls and judge("I cannot.", truth)["acc"] == (not calls)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('Let me see.\n<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>', True),
        ('[{"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}]', True),
        ('{"name": "weather", "parameters": {"city": "Rome"}}', True),
        ("[weather(city='Rome')]", True),
        ("[I do not know.]", False),
        ("{}", False),
        ("It rains.", False),
    ],
)
def test_calls_in_an_assistants_text_are_calls(text, calls):
    row = {"tools": TOOLS, "messages": [ASKED, {"role": "assistant", "content": text}]}
    (problem,) = own_call_problems(row, "s", 0, **COLUMNS)
    assert judge(written("Rome"), problem.answer)["acc"] == calls and (problem.answer == "[]") is not calls


@pytest.mark.parametrize(
    "text", ["<tool_call>{", "<TOOLCALL>[f(1)]</TOOLCALL>", "<TOOLCALL>[{}", "<tool_call>f()</tool_call>"]
)
def test_calls_in_a_text_that_cannot_be_read_are_no_row_without_calls(text):
    row = {"tools": TOOLS, "messages": [ASKED, {"role": "assistant", "content": text}]}
    with pytest.raises(MalformedRow, match="call"):
        own_call_problems(row, "s", 0, **COLUMNS)


def test_chats_become_traces_and_their_tokens(tmp_path):
    path = write_jsonl(tmp_path / "calls.jsonl", [chat("Rome"), chat("Bonn")])
    data = made(
        tmp_path, f"data.file.sft={path}", "data.file.tools=tools", 'data.prompt="{question}"',
        "data.sft_validation_share=0.5",
    )  # fmt: skip
    (train,), (validation,) = data.sft_train_files, data.sft_validation_files
    check_sft(train)
    assert len(rows_of(train)) == len(rows_of(validation)) == 2  # the messages of one chat stay together
    city = rows_of(train)[0]["question"].split()[2]
    tokenizer = make_tokenizer()
    dataset = ReToolSFTDataset([train], tokenizer, {"format": "hermes", "max_length": 4000})
    texts = [tokenizer.decode(item["input_ids"][item["loss_mask"].bool()]) for item in dataset]
    assert texts == [f"{written(city, 'Oslo')}<|im_end|>", "Rain, and snow.<|im_end|>"]
    whole = tokenizer.decode(dataset[1]["input_ids"])
    assert whole.startswith(tokenizer.decode(dataset[0]["input_ids"])) and "weather" in whole and "snow" in whole
    with pytest.raises(UserError, match=r"Row 0 of .* cannot be rendered: format text cannot list tools in a prompt"):
        ReToolSFTDataset([train], tokenizer, {"format": "text", "max_length": 4000})
    assert pq.read_table(validation).num_rows == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"messages": "hello"}, "messages is no list of 1 to 100 messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "message 0 is of the role 'bot'"),
        ({"messages": chat("Rome")["messages"][2:]}, "nothing is asked before the assistant's first message"),
        ({"messages": chat("Rome")["messages"][:2]}, "no assistant message answers the user"),
        ({"messages": [{"role": "user", "content": " "}]}, "message 0 is empty"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": ["x"]}]}, "message 1 is no list of calls"),
        ({"tools": "no json"}, "tools is not JSON"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_graded_says_why(change, reason):
    with pytest.raises(MalformedRow, match=reason):
        own_call_problems(chat("Rome") | change, "s", 0, **COLUMNS)


def test_a_row_that_is_no_object_says_so():
    with pytest.raises(MalformedRow, match="'question' leads nowhere"):
        own_call_problems(7, "s", 0, **COLUMNS)
