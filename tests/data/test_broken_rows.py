"""A row that no file should hold is left out and counted with its reason; the rows around it are kept."""

import json
import re
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retool_mcore.data.prepare import prepare_rl
from retool_mcore.data.records import Malformed, Problem
from retool_mcore.data.sources import SOURCES, Source, load, own_problem
from retool_mcore.data.traces import own_trace
from retool_mcore.errors import UserError

GOOD = [{"q": f"What is {n} + 1?", "a": str(n + 1)} for n in range(6)]


def own(**given):
    def parse(row, name, index):
        return own_problem(row, name, index, question="q", answer="a")

    return Source("own", "own", "rl", "train", ("q", "a"), parse, **given)


def lines(*middle: bytes) -> bytes:
    rows = [json.dumps(row).encode() for row in GOOD]
    return b"\n".join([*rows[:3], *middle, *rows[3:]]) + b"\n"


def check(tmp_path, path, reason, good=6, bad=1):
    """All good rows are kept, the others counted, and what is printed and written is text."""
    found = list(load(own(), path))
    kept = [record for record in found if isinstance(record, Problem)]
    wrong = [record for record in found if isinstance(record, Malformed)]
    assert [record.question for record in kept] == [row["q"] for row in GOOD[:good]]
    assert len(wrong) == bad and all(reason in record.reason for record in wrong), wrong
    report = prepare_rl(own(), tmp_path / "out", location=path)
    assert (report.kept, len(report.malformed)) == (good, bad)
    "\n".join(report.lines()).encode()
    assert pq.read_metadata(tmp_path / "out" / "train.parquet").num_rows == good
    assert any(reason in wrong for wrong in json.loads(report.path.read_text(encoding="utf-8"))["reasons"])


JSON_ROWS = {
    "half an emoji": (b'{"q": "Half \\ud83d?", "a": "1"}', "half of a surrogate pair in the question"),
    "its other half": (b'{"q": "Half \\uDE00?", "a": "1"}', "half of a surrogate pair in the question"),
    "in the answer": (b'{"q": "Q?", "a": "\\ud83d"}', "half of a surrogate pair in the answer"),
    "NUL": (b'{"q": "Q\\u0000?", "a": "1"}', "a NUL character in the question"),
    "not UTF-8": (b'{"q": "caf\xe9?", "a": "1"}', "not UTF-8"),
    "a number": (b'{"q": 3, "a": "1"}', "q is int, expected text"),
    "null": (b'{"q": null, "a": "1"}', "q is null"),
    "a list": (b'{"q": ["Q?"], "a": "1"}', "q is list, expected text"),
    "true": (b'{"q": "Q?", "a": true}', "a is bool, expected text"),
    "NaN": (b'{"q": "Q?", "a": NaN}', "a is float, expected text"),
    "a key twice": (b'{"q": "Q?", "a": "1", "a": "2"}', "an object has the key 'a' twice"),
    "no key": (b'{"q": "Q?"}', "'a' leads nowhere"),
    "no object": (b'["Q?", "1"]', "'q' leads nowhere"),
    "deep": (b'{"q": ' + b"[" * 100_000, "not JSON"),
    "a long number": (b'{"q": "Q?", "a": 1' + b"0" * 5000 + b"}", "not JSON"),
    "blank": (b'{"q": " \\n", "a": "1"}', "empty question"),
    "zeros of a disk": (b"\0" * 40, "not JSON"),
    "half of it in a name": (b'{"\\ud83d": "Q?", "a": "1"}', "'q' leads nowhere; the row has \\ud83d"),
}


@pytest.mark.parametrize("kind", JSON_ROWS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_a_broken_line_of_json(tmp_path, kind, suffix):
    row, reason = JSON_ROWS[kind]
    path = tmp_path / f"own{suffix}"
    path.write_bytes(lines(row))
    check(tmp_path, path, reason)


def test_an_emoji_that_is_whole_is_kept(tmp_path):
    (tmp_path / "own.jsonl").write_bytes(b'{"q": "\\ud83d\\ude00?", "a": "1"}\n')
    assert [record.question for record in load(own(), tmp_path / "own.jsonl")] == ["\U0001f600?"]


def test_half_an_emoji_in_a_column_that_is_not_read_costs_nothing(tmp_path):
    (tmp_path / "own.jsonl").write_bytes(b'{"q": "Q?", "a": "1", "note": "\\ud83d"}\n')
    assert [record.question for record in load(own(), tmp_path / "own.jsonl")] == ["Q?"]


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_cut_last_line(tmp_path, bom):
    path = tmp_path / "own.jsonl"
    path.write_bytes(bom + lines() + b'{"q": "What is 9')
    check(tmp_path, path, "not JSON")


READ = [kind for kind, (row, reason) in JSON_ROWS.items() if not re.search("not|twice", reason)]


@pytest.mark.parametrize("kind", READ)
def test_a_broken_element_of_a_list(tmp_path, kind):
    row, reason = JSON_ROWS[kind]
    rows = lines(row).strip().replace(b"}\n", b"},\n").replace(b'"]\n', b'"],\n')
    path = tmp_path / "own.json"
    path.write_bytes(b"[" + rows + b"]")
    check(tmp_path, path, reason)


def test_a_byte_that_is_no_utf8_in_a_list(tmp_path):
    path = tmp_path / "own.json"
    path.write_bytes(b"\xef\xbb\xbf[" + lines(JSON_ROWS["not UTF-8"][0]).strip().replace(b"}\n", b"},\n") + b"]\n")
    check(tmp_path, path, "not UTF-8: the byte 0xe9 in the question")


@pytest.mark.parametrize("end", [b"", b',{"q": "What is 9', b",\n", b'{"q": "no comma"}]', b',{"q": "Q?", "q": "R?"}]'])
def test_a_list_that_is_cut_keeps_what_came_before(tmp_path, end):
    path = tmp_path / "own.json"
    path.write_bytes(b"[" + b",".join(json.dumps(row).encode() for row in GOOD) + end)
    check(tmp_path, path, "not JSON, and nothing behind it was read")


CSV_ROWS = {
    "a comma without quotes": (b"What is 1,000 + 1?,1001\n", "3 cells, and the header has 2", 1),
    "a quote that nothing closes": (b'"What is 1?,1\n', "not CSV", 1),
    "text behind a quote": (b'"5" disks?,5\n', "not CSV", 1),
    "not UTF-8": (b"caf\xe9?,1\n", "not UTF-8: the byte 0xe9 in the question", 1),
    "NUL": (b"Q\0?,1\n", "NUL", 1),
    "no answer": (b"Q?\n", "a is null", 1),
    "an empty answer": (b"Q?,\n", "a is empty", 1),
    "an empty question": (b",1\n", "empty question", 1),
    "three of them": (b'"a,1\n"b,2\nc,d,3\n', "", 3),
}


@pytest.mark.parametrize("kind", CSV_ROWS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_broken_row_of_csv(tmp_path, kind, newline, bom):
    row, reason, bad = CSV_ROWS[kind]
    rows = [f"{row['q']},{row['a']}\n".encode() for row in GOOD]
    path = tmp_path / "own.csv"
    path.write_bytes(bom + b"".join([b"q,a\n", *rows[:3], row, *rows[3:]]).replace(b"\n", newline))
    check(tmp_path, path, reason, bad=bad)


def test_csv_takes_long_cells_blank_lines_and_empty_cells_at_the_end(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text('q,a\n\n"' + "long " * 100_000 + '",1\n\n"two\nlines, ""quoted""",2,,\n')
    first, second = load(own(), path)
    assert len(first.question) == 499_999 and second.question == 'two\nlines, "quoted"' and second.answer == "2"


@pytest.mark.parametrize("text", ["q,a,q\nx,1,y\n", '"q,a\nx,1\n'])
def test_a_header_that_is_none_is_one_sentence(tmp_path, text):
    path = tmp_path / "own.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"own.csv"):
        list(load(own(), path))


def test_cells_of_parquet(tmp_path):
    texts = pa.array(["good", "bad", "also good", None, "nul\0"]).cast(pa.binary()).to_pylist()
    texts[1] = b"caf\xe9"
    column = pa.array(texts, pa.binary()).view(pa.string())
    pq.write_table(pa.table({"q": column, "a": ["1"] * 5}), tmp_path / "own.parquet")
    found = list(load(own(), tmp_path / "own.parquet"))
    assert [record.question for record in found if isinstance(record, Problem)] == ["good", "also good"]
    reasons = [record.reason for record in found if isinstance(record, Malformed)]
    for reason, start in zip(reasons, ["not UTF-8:", "q is null", "a NUL character in the question"], strict=True):
        assert reason.startswith(start)
    dates = pa.table({"q": ["Q?", "R?"], "a": pa.array([1, 1_000_000_001], pa.timestamp("ns"))})
    pq.write_table(dates, tmp_path / "dates.parquet")
    assert all(isinstance(record, Malformed) for record in load(own(), tmp_path / "dates.parquet"))
    twice = pa.Table.from_arrays([pa.array(["Q?"]), pa.array(["1"]), pa.array(["R?"])], ["q", "a", "q"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(UserError, match="has the column 'q' twice"):
        list(load(own(), tmp_path / "twice.parquet"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("own.jsonl", b'{"q": "\\ud83d", "a": "1"}\n{"q": \n'),
        ("own.json", b"[1, 2"),
        ("own.csv", b"q;a\nx;1\n"),
        ("own.csv", "q,a\nx,1\n".encode("utf-16")),
        ("own.jsonl", '{"q": "Q?", "a": "1"}\n'.encode("utf-16")),
        ("own.jsonl", b""),
        ("own.csv", b""),
        ("own.csv", b"q,a\n"),
        ("own.json", b"[]"),
        ("own.parquet", b""),
        ("own.parquet", b"PAR1 and no more"),
    ],
)
def test_a_file_without_a_good_row_is_one_sentence(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        prepare_rl(own(), tmp_path / "out", location=path)
    assert "\n" not in str(refused.value)


KEYS = st.sampled_from(
    ["prompt", "reward_model", "ground_truth", "role", "content", "messages", "tool_calls", "function", "arguments"]
    + ["question", "answer", "query", "answers", "tools", "problem", "Problem", "Answer", "id", "name", "parameters"]
    + ["code", "conversations", "system", "from", "value", "possible_answer"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud83d", "<code>", "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | KEYS, inner, max_size=4),
    max_leaves=8,
)
ROWS = st.lists(st.dictionaries(KEYS, ANYTHING, max_size=6) | ANYTHING, max_size=3)

# A source of each function that reads rows.
BY_READER = {getattr(source.parse, "func", source.parse).__name__: source for source in SOURCES.values()}


@settings(max_examples=150, deadline=None)
@given(ROWS, st.sampled_from(sorted(BY_READER)))
def test_no_row_ends_a_reader(tmp_path_factory, rows, reader):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parse = partial(own_trace, messages="messages")
    for tried in (BY_READER[reader], Source("s", "s", "sft", "train", None, parse)):
        for record in load(replace(tried, columns=None, complete=None), path):
            assert record is not None


def test_a_row_names_its_data_source(tmp_path):
    path = tmp_path / "own.jsonl"
    named = ["algebra", "Number Theory", "a/b: c", 7, " ", None, ["x"]]
    rows = [{"q": f"Q{i}?", "a": "1", "of": {"f": name}} for i, name in enumerate(named)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = list(load(own(named_by="of.f"), path))
    assert [record.data_source for record in found[:4]] == ["algebra", "Number_Theory", "a_b_c", "7"]
    assert [record.reason for record in found[4:]] == ["of.f is empty", "of.f is null", "of.f is list, expected text"]
    report = prepare_rl(own(named_by="of.f"), tmp_path / "out", location=path)
    assert report.sources == {"algebra": 1, "Number_Theory": 1, "a_b_c": 1, "7": 1}
    assert "4 data sources: algebra 1, Number_Theory 1" in "\n".join(report.lines())
