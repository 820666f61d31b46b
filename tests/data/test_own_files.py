"""Data of the user's own through `retool prepare data=file`: every kind of file, nested columns, weights, splits."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.config import compose
from retool_mcore.data import sources
from retool_mcore.data.held_back import shared_problem
from retool_mcore.data.records import MalformedRow
from retool_mcore.data.schema import check_rl, check_sft
from retool_mcore.data.sources import own_problem
from retool_mcore.errors import UserError
from retool_mcore.runner.launch import launch
from retool_mcore.train import prepare

COLUMNS = ("data.file.question=problem", "data.file.answer=solution")


def made(tmp_path, *overrides):
    given = ["data=file", "name=t", f"runs_dir={tmp_path}", *overrides]
    prepare.run(compose("prepare", given))
    return compose("rl", given).data


def rows_of(*paths):
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def problems(numbers, word="What is"):
    return [{"problem": f"{word} {n}?", "solution": str(n)} for n in numbers]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_file_becomes_training_held_back_and_evaluation(tmp_path, capsys):
    rows = problems(range(100)) + [{"problem": None, "solution": "1"}, {"solution": "1"}, {"solution": "1"}]
    path = write_jsonl(tmp_path / "my.jsonl", [*rows, rows[0]])
    data = made(tmp_path, f"data.file.train={path}", *COLUMNS)
    parts = [data.train_files, data.held_back_files, data.validation_files]
    files = [part if isinstance(part, str) else part[0] for part in parts]
    for file in files:
        check_rl(file)
    assert [len(rows_of(file)) for file in files] == [88, 2, 10]
    assert not any(shared_problem([a], [b]) for a, b in zip(files, files[1:] + files[:1], strict=True))
    assert {row["data_source"] for row in rows_of(*files)} == {"my"}
    assert not (tmp_path / "t" / "model").exists()  # no model was named
    told = capsys.readouterr().out
    assert "my: 104 rows read: 100 kept, 1 duplicates, 3 malformed" in told
    line = 'malformed 2 x: \'problem\' leads nowhere; the row has solution; first row 101: {"solution": "1"}'
    assert line in told and "malformed 1 x: problem is null; first row 100" in told


def test_every_kind_of_file_with_weights_names_and_nested_columns(tmp_path):
    nested = [{"task": {"text": [f"Double {n}"]}, "meta.answer": n / 2} for n in range(8)]
    (tmp_path / "n.json").write_text(json.dumps(nested))
    pq.write_table(
        pa.Table.from_pylist([{"task": {"q": f"Quad {n}"}, "a": n} for n in range(8)]), tmp_path / "p.parquet"
    )
    with (tmp_path / "c.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerows([["problem", "solution"], *([f"Triple {n}", f"so #### {3 * n}"] for n in range(8))])
    n = f"{{path: {tmp_path}/n.json, question: task.text.0, answer: meta.answer, weight: 2.5, name: halves}}"
    p = f"{{path: {tmp_path}/p.parquet, question: task.q, answer: a}}"
    c = f"{{path: {tmp_path}/c.csv, weight: 0.5}}"
    data = made(
        tmp_path, f"data.file.train=[{n},{c}]", f"data.file.eval={p}", *COLUMNS, 'data.prompt="Solve {question} now"'
    )
    halves, c = (rows_of(path) for path in data.train_files)
    assert (len(halves), len(c)) in ((18, 4), (20, 4), (18, 3))  # the one held back is of either
    counts = sorted(sum(row == other for other in halves) for row in halves)
    assert set(counts) == {2, 3}
    assert {row["data_source"] for row in halves} == {"halves"} and {row["data_source"] for row in c} == {"c"}
    assert {row["reward_model"]["ground_truth"] for row in halves} <= {"0", "0.5", "1", "1.5", "2", "2.5", "3", "3.5"}
    (test,) = data.validation_files
    first = rows_of(test)[0]
    assert first["prompt"] == [{"role": "user", "content": "Solve Quad 0 now"}]
    assert (first["data_source"], first["reward_model"]["ground_truth"], len(rows_of(test))) == ("p", "0", 8)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("7", "7"),
        (1.5e-7, "0.00000015"),
        (3.0, "3"),
        ("So \\boxed{1} or rather \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}"),
        ("4 + 4 = 8\n#### 8", "8"),
    ],
)
def test_answers(value, answer):
    assert own_problem({"q": "Q?", "a": value}, "s", 0, question="q", answer="a").answer == answer


@pytest.mark.parametrize("value", [None, "", "so ####", float("nan"), True, ["1"]])
def test_answers_that_are_none(value):
    with pytest.raises(MalformedRow):
        own_problem({"q": "Q?", "a": value}, "s", 0, question="q", answer="a")


def test_traces_in_text_and_with_tool_calls(tmp_path):
    function = {"name": "code_interpreter", "arguments": json.dumps({"code": "print(2)"})}
    text = "So:\n<code>\n```python\nprint(2)\n```\n</code>\n<interpreter>\n2\n</interpreter>\n\\boxed{2}"
    user = {"role": "user", "content": "What is 1 + 1?"}
    calls = [
        {"role": "system", "content": "Use tools."},
        user | {"content": "What is 2 + 0?"},
        {"role": "assistant", "content": "So:", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
        {"role": "assistant", "content": "\\boxed{2}"},
    ]
    bad = [user, {"role": "assistant", "content": "No box."}]
    rows = [{"chat": {"turns": [user, {"role": "assistant", "content": text}]}}, {"chat": {"turns": calls}}]
    path = write_jsonl(tmp_path / "traces.jsonl", [*rows, {"chat": {"turns": bad}}])
    wanted = ("data.file.messages=chat.turns", "data.sft_validation_share=0.5")
    data = made(tmp_path, f"data.file.sft={path}", *wanted)
    files = [*data.sft_train_files, *data.sft_validation_files]
    for file in files:
        check_sft(file)
    found = {row["question"]: [(s["kind"], s["text"]) for s in row["segments"]] for row in rows_of(*files)}
    segments = [("text", "So:\n"), ("code", "print(2)"), ("observation", "2"), ("text", "\\boxed{2}")]
    assert found == {"What is 1 + 1?": segments, "What is 2 + 0?": segments}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["data.file.train=[{good},/nowhere/b.jsonl]"], "no such file or folder: /nowhere/b.jsonl"),
        (["data.file.train={good}", "data.file.eval=/nowhere/b.csv"], "no such file or folder: /nowhere/b.csv"),
        (["data.file.train=[{good},{table}]"], "has no column 'problem': it has x."),
        (["data.file.train=[{good},some/set]"], "cannot load 'some/set' from the hub"),
        (["data.file.train={good}", "data.prompt=retol"], "unknown prompt template 'retol': did you mean 'retool'?"),
        ([], "data=file names no data: give data.file.train=FILE"),
    ],
)
def test_everything_is_looked_for_before_anything_is_read(tmp_path, monkeypatch, overrides, words):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    good = write_jsonl(tmp_path / "good.jsonl", problems(range(9)))
    table = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist([{"x": 1}]), table)
    given = [override.replace("{good}", str(good)).replace("{table}", str(table)) for override in overrides]
    with pytest.raises(UserError, match=words.replace("?", "\\?")):
        made(tmp_path, *given, *COLUMNS)
    assert not (tmp_path / "t" / "data").exists()


def refuse(*_, **__):
    raise OSError("404 Client Error: not found")


def test_math_looks_for_a_local_file_before_it_asks_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", refuse)
    monkeypatch.setattr(sources, "hub_rows", lambda *_: pytest.fail("read"))
    with pytest.raises(UserError, match="no such file or folder: /nowhere/aime.parquet"):
        prepare.run(
            compose(
                "prepare",
                ["data=math", f"runs_dir={tmp_path}", "data.sources.aime_2025.location=/nowhere/aime.parquet"],
            )
        )


def test_an_edited_input_is_prepared_anew(tmp_path, capsys):
    path = write_jsonl(tmp_path / "my.jsonl", problems(range(30)))
    (tmp_path / "prompt.txt").write_text("Solve {question}")
    words = ["data=file", "name=t", f"runs_dir={tmp_path}", f"data.file.train={path}", *COLUMNS]
    config = compose("prepare", [*words, f"data.prompt={tmp_path}/prompt.txt"])

    def start() -> str:
        launch("prepare", config)
        return capsys.readouterr().out

    assert "my: 30 rows read" in start()
    assert "complete already" in start()
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match="no such file or folder"):
        launch("prepare", config)
    path.write_bytes(content)  # at another time
    assert "complete already" in start()
    write_jsonl(path, problems(range(40)))
    assert f"prepare: {path} changed: prepared anew" in (said := start()) and "my: 40 rows read" in said
    (tmp_path / "prompt.txt").write_text("Now solve {question}")
    assert "prompt.txt changed: prepared anew" in start()
    rows = rows_of(tmp_path / "t" / "data" / "train" / "my" / "train.parquet")
    assert rows[0]["prompt"][0]["content"].startswith("Now solve")
    assert "complete already" in start()


def test_a_column_names_the_data_source_of_problems_and_only_a_trace_files_own_of_traces(tmp_path):
    rows = [row | {"family": ("algebra", "Number Theory")[n % 2]} for n, row in enumerate(problems(range(40)))]
    path = write_jsonl(tmp_path / "my.jsonl", rows)
    text = "<code>\n```python\nprint(2)\n```\n</code>\n<interpreter>\n2\n</interpreter>\n\\boxed{2}"
    trace = {"messages": [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": text}]}
    sft = write_jsonl(tmp_path / "sft.jsonl", [trace])
    other = write_jsonl(tmp_path / "other.jsonl", problems(range(100, 110)))
    named = f"{{path: {other}, source: solution}}"
    data = made(
        tmp_path, f"data.file.train={path}", f"data.file.eval={named}", f"data.file.sft={sft}", *COLUMNS,
        "data.file.source=family", "data.sft_validation_share=0",
    )  # fmt: skip
    found = rows_of(*data.train_files, data.held_back_files)
    assert {row["data_source"] for row in found} == {"algebra", "Number_Theory"}
    assert {row["data_source"] for row in rows_of(*data.validation_files)} == {str(n) for n in range(100, 110)}
    assert {row["data_source"] for row in rows_of(*data.sft_train_files)} == {"sft"}


def test_a_column_of_sources_that_is_not_there_is_one_sentence(tmp_path):
    path = tmp_path / "my.parquet"
    pq.write_table(pa.Table.from_pylist(problems(range(4))), path)
    with pytest.raises(UserError, match="has no column 'family'"):
        made(tmp_path, f"data.file.train={path}", *COLUMNS, "data.file.source=family")
