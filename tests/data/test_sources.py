import csv
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.data.records import Malformed, Problem, Trace
from retool_mcore.data.sources import SOURCES, get_source, load
from retool_mcore.errors import UserError

DAPO_PROMPT = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
DAPO_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("content", pa.string()), ("role", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.string())])),
    ]
)
MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("name", pa.string()),
        ("tool_call_id", pa.string()),
        (
            "tool_calls",
            pa.list_(
                pa.struct(
                    [
                        ("id", pa.string()),
                        ("type", pa.string()),
                        (
                            "function",
                            pa.struct([("name", pa.string()), ("arguments", pa.struct([("code", pa.string())]))]),
                        ),
                    ]
                )
            ),
        ),
    ]
)


def dapo_row(question, answer):
    return {
        "data_source": "math_dapo",
        "prompt": None if question is None else [{"content": DAPO_PROMPT.format(question), "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
    }


def write(path, rows, schema=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path, **options)
    return path


def records(name, location):
    return list(load(SOURCES[name], location))


def test_dapo_gives_bare_questions_and_row_numbers(tmp_path):
    rows = [dapo_row("Find $\\{x²\\}$\r\nnow.", "34"), dapo_row(None, "1"), dapo_row("Q?", None), dapo_row("  ", "3")]
    assert records("dapo_math_17k", write(tmp_path / "d.parquet", rows, DAPO_SCHEMA)) == [
        Problem("dapo_math_17k", "Find $\\{x²\\}$\nnow.", "34", 0),
        Malformed(1, "prompt is NoneType, expected a list of one message"),
        Malformed(2, "ground_truth is null"),
        Malformed(3, "empty question"),
    ]


def test_a_prompt_without_the_wrapper_is_the_question(tmp_path):
    row = dapo_row("Q?", "1") | {"prompt": [{"role": "user", "content": "Only the question?"}]}
    assert records("aime_2024", write(tmp_path / "d.parquet", [row], DAPO_SCHEMA)) == [
        Problem("aime_2024", "Only the question?", "1", 0)
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": []}, "prompt is 0 messages"),
        ({"prompt": "Q?"}, "prompt is str, expected a list"),
        ({"prompt": ["Q?"]}, "prompt message is str, expected an object"),
        ({"prompt": [{"role": "user"}]}, "prompt message has no field 'content'"),
        ({"prompt": [{"role": "system", "content": "Q?"}]}, "the prompt's role is 'system', expected 'user'"),
        ({"prompt": [{"role": "user", "content": 3}]}, "prompt content is int, expected text"),
        ({"reward_model": None}, "reward_model is null, expected an object"),
        ({"reward_model": {"style": "rule"}}, "reward_model has no field 'ground_truth'"),
        ({"reward_model": {"ground_truth": " "}}, "ground_truth is empty"),
        ({"reward_model": {"ground_truth": True}}, "ground_truth is bool, expected text"),
        ({"reward_model": {"ground_truth": ["1"]}}, "ground_truth is list, expected text"),
    ],
)
def test_a_wrong_nested_field_is_named(tmp_path, change, reason):
    path = tmp_path / "d.jsonl"
    path.write_text(json.dumps(dapo_row("Q?", "1") | change) + "\n" + json.dumps(dapo_row("R?", "2")) + "\n")
    bad, good = records("dapo_math_17k", path)
    assert bad.row == 0 and bad.reason.startswith(reason)
    assert good == Problem("dapo_math_17k", "R?", "2", 1)


def test_the_other_aime_sets_take_whole_number_answers(tmp_path):
    maxwell = [{"ID": "2024-II-4", "Problem": "P?", "Solution": "S", "Answer": 33}]
    assert records("aime_2024_maxwell", write(tmp_path / "m.parquet", maxwell)) == [Problem("aime_2024", "P?", "33", 0)]
    yentinglin = [{"id": 0, "problem": f"P{i}?", "answer": answer} for i, answer in enumerate([70.0, None, 1.5])]
    assert records("aime_2025", write(tmp_path / "y.parquet", yentinglin)) == [
        Problem("aime_2025", "P0?", "70", 0),
        Malformed(1, "answer is null"),
        Malformed(2, "answer is float, expected text"),
    ]


def test_a_multi_turn_parquet_with_nested_types_becomes_a_trace(tmp_path):
    function = {"name": "code_interpreter", "arguments": {"code": "print(2)"}}
    conversation = [
        {"role": "user", "content": "**user question:**\nWhat is 1 + 1?"},
        {"role": "assistant", "content": "So:", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": "It is \\boxed{2}."},
    ]
    rows = [{"messages": conversation}, {"messages": None}, {"messages": conversation[:2]}, {"messages": [None]}]
    path = write(tmp_path / "train.parquet", rows, pa.schema([("messages", pa.list_(MESSAGE))]))
    trace, *malformed = records("retool_sft_multi_turn", path)
    assert isinstance(trace, Trace)
    assert [(s.kind, s.text) for s in trace.segments] == [
        ("text", "So:\n"),
        ("code", "print(2)"),
        ("observation", "2"),
        ("text", "It is \\boxed{2}."),
    ]
    assert [m.row for m in malformed] == [1, 2, 3]


def test_every_file_kind_gives_the_same_records(tmp_path):
    rows = [{"problem": f'Ünï "{i}",\n½?', "answer": str(i)} for i in range(3)]
    expected = [Problem("aime_2025", row["problem"], row["answer"], i) for i, row in enumerate(rows)]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "a.jsonl").write_text(lines + "\r\n\r\n", encoding="utf-8", newline="")
    (tmp_path / "lines.json").write_text(lines, encoding="utf-8-sig", newline="")
    (tmp_path / "list.json").write_text("\n " + json.dumps(rows, indent=1), encoding="utf-8-sig")
    with (tmp_path / "a.csv").open("w", encoding="utf-8-sig", newline="") as stream:
        writer = csv.DictWriter(stream, ["problem", "answer"])
        writer.writeheader()
        writer.writerows(rows)
    write(tmp_path / "a.parquet", rows)
    for name in ("a.jsonl", "lines.json", "list.json", "a.csv", "a.parquet"):
        assert records("aime_2025", tmp_path / name) == expected, name


def test_a_folder_is_read_in_name_order_with_rows_counted_on(tmp_path):
    for shard in (1, 0):
        rows = [dapo_row(f"Q{shard}{i}?", "1") for i in range(2)]
        write(tmp_path / "data" / f"train-{shard}.parquet", rows, DAPO_SCHEMA)
    (tmp_path / "dataset_infos.json").write_text("{}")
    write(tmp_path / ".cache" / "train-9.parquet", [dapo_row("hidden", "1")], DAPO_SCHEMA)
    assert [(p.question, p.index) for p in records("dapo_math_17k", tmp_path)] == [
        ("Q00?", 0),
        ("Q01?", 1),
        ("Q10?", 2),
        ("Q11?", 3),
    ]


def test_a_broken_line_is_reported_and_the_next_ones_are_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"problem": "P?", "answer": 1}\n{"problem":\n3\n"\xe9"\n{"problem": "R?", "answer": "x"}\n')
    good, broken, number, latin, last = records("aime_2025", path)
    assert (good.index, last.index) == (0, 4)
    assert broken.reason.startswith("not JSON") and broken.row == 1
    assert latin.reason.startswith("not UTF-8") and latin.row == 3
    assert number == Malformed(2, "row is int, expected an object")


def test_parquet_is_streamed_so_a_damaged_end_comes_after_the_rows_before_it(tmp_path):
    rows = [dapo_row(f"Q{i}?", "1") for i in range(6000)]
    path = write(tmp_path / "d.parquet", rows, DAPO_SCHEMA, row_group_size=3000)
    data = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(1)
    assert chunk.path_in_schema.startswith("prompt")
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(data)
    stream = load(SOURCES["dapo_math_17k"], path)
    first = [next(stream) for _ in range(1024)]
    assert [p.index for p in first] == list(range(1024))
    with pytest.raises(UserError, match="cannot read .*d.parquet as parquet"):
        list(stream)


def test_user_errors_are_one_clear_sentence(tmp_path):
    no_column = write(tmp_path / "n.parquet", [{"prompt": "x", "id": 1}])
    (tmp_path / "text.txt").write_text("x")
    (tmp_path / "bad.parquet").write_bytes(b"not parquet")
    (tmp_path / "empty").mkdir()
    for location, message in [
        (no_column, "has no column 'reward_model': it has prompt, id"),
        (tmp_path / "text.txt", "expected a file that ends in .parquet"),
        (tmp_path / "bad.parquet", "as parquet"),
        (tmp_path / "empty", "holds no data"),
        (tmp_path / "none.parquet", "no such file or folder"),
        ("data/none.parquet", "no such file or folder"),
    ]:
        with pytest.raises(UserError, match=message):
            records("dapo_math_17k", location)
    with pytest.raises(UserError, match="unknown data set 'dapo': the data sets are retool_sft, "):
        get_source("dapo")


HUB_SCRIPT = """
import sys
from retool_mcore.data.sources import SOURCES, hub_rows, load
from retool_mcore.errors import UserError
print([row["answer"] for row in hub_rows(sys.argv[1])])
try:
    list(load(SOURCES["aime_2025"]))
except UserError as error:
    print(error)
"""


def test_the_hub_loader_reads_a_repository_copy_and_says_so_when_offline(tmp_path):
    # In its own process: `datasets` reads its cache folder and the offline switch from the environment once, at import.
    write(tmp_path / "copy" / "data" / "train-00000-of-00001.parquet", [{"problem": "P?", "answer": "5"}])
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-c", HUB_SCRIPT, str(tmp_path / "copy")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    rows, message = done.stdout.strip().splitlines()
    assert rows == "['5']"
    assert message.startswith("cannot load 'yentinglin/aime_2025' from the hub")
