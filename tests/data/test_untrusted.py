"""JSON compares as JSON: numbers as numbers, at every depth, and True is none."""

import asyncio
import json

import pytest
from function_rows import XLAM
from recipe_samples import sample

from retool_mcore.data import untrusted
from retool_mcore.data.function_schema import argument_error
from retool_mcore.data.prepare import prepare_rl
from retool_mcore.metrics.pass_k import majority_acc
from retool_mcore.rewards.tool_calls import judge, tool_n1
from retool_mcore.rewards.toolrl import toolrl
from retool_mcore.tools.base import Episode
from retool_mcore.tools.recorded import ReplayTable

SAME = [
    ("5", "5.0"), ("1e3", "1000"), ("-0.0", "0"), ("2.50", "2.5"), ("1e23", "1" + 23 * "0"), ("1E2", "100.0"),
    ('{"a": [1, {"b": 2.0}]}', '{"a": [1.0, {"b": 2}]}'), ("[[5.0]]", "[[5]]"),
    ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
]  # fmt: skip
OTHER = [
    ("true", "1"), ("false", "0"), ("true", "1.0"), ('"5"', "5"), ("null", "0"), ("[1, 2]", "[2, 1]"), ("5", "5.1"),
    ("[true]", "[1]"), ('{"a": {"b": true}}', '{"a": {"b": 1.0}}'), ("9007199254740993", "9007199254740992"),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "same"), [(*pair, True) for pair in SAME] + [(*p, False) for p in OTHER])
def test_numbers_are_equal_as_numbers_for_every_reader_of_calls(first, second, same):
    a, b = json.loads(first), json.loads(second)
    assert untrusted.same_json(a, b) == untrusted.same_json(b, a) == same
    truth, call = ({"name": "f", "arguments": {"x": value}} for value in (a, b))
    as_list, as_line = (
        f"<think>t</think><tool_call>{text}</tool_call>" for text in (f"[{_call(second)}]", _call(second))
    )
    assert judge(as_line, json.dumps([truth]))["acc"] == same
    assert tool_n1(sample(text=as_list, ground_truth=json.dumps([truth]))) == same
    for granularity, partial in (("fine", 1 + 3 * (2 * 2 / 3 - 1)), ("intermediate", 1.0), ("coarse", -2.0)):
        priced = toolrl(sample(text=as_line, ground_truth=json.dumps([truth])), granularity=granularity)
        assert priced == pytest.approx(4.0 if same else partial)


def _call(value):
    return f'{{"name": "f", "arguments": {{"x": {value}}}}}'


def test_a_recorded_reply_is_found_however_its_numbers_are_written():
    schema = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    recorded = json.dumps([{"name": "f", "arguments": {"x": [5.0]}, "reply": "found"}])
    tool = ReplayTable(replies=True).tool(schema)
    episode = Episode({"replies": recorded})
    replies = [asyncio.run(tool.call({"x": x}, episode)) for x in ([5], [5.5], [True])]
    assert [reply.text for reply in replies] == ["found", "", ""]


def test_votes_for_one_call_are_one_group():
    truth = json.dumps([{"name": "f", "arguments": {"x": 5}}])
    texts = [f"<tool_call>{_call(value)}</tool_call>" for value in ("6", "5", "5.0")]
    assert majority_acc([judge(text, truth) for text in texts]) == 1.0


def test_items_that_differ_in_spelling_alone_are_not_unique():
    schema = {"type": "object", "properties": {"l": {"uniqueItems": True}}}
    assert "non-unique" in argument_error(schema, {"l": [1, 1.0]})
    assert argument_error(schema, {"l": [1, True, "1"]}) is None


def test_a_row_that_repeats_a_call_in_another_spelling_is_a_duplicate_and_no_dispute(tmp_path):
    rows = [XLAM, XLAM | {"answers": XLAM["answers"].replace("10", "10.0")}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = prepare_rl("xlam", tmp_path / "out", location=tmp_path / "rows.jsonl", template="tool_n1")
    assert (report.kept, report.duplicates, report.malformed) == (1, 1, ())


def test_what_is_no_number_stays_as_it_is():
    assert untrusted.canonical_json([float("nan"), float("inf"), "5.0"]) == '[NaN, Infinity, "5.0"]'
