"""`data.file.keep`: columns of every kind of file that reach the reward with their types."""

import csv
import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.config import compose
from retool_mcore.data.kept import read_kept
from retool_mcore.data.schema import check_rl
from retool_mcore.errors import UserError
from retool_mcore.train import prepare


def made(tmp_path, *overrides):
    given = ["data=file", "name=t", f"runs_dir={tmp_path}", *overrides]
    prepare.run(compose("prepare", given))
    return compose("rl", given).data


def kept(*paths):
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    for path in paths:
        check_rl(path)
    return {row["extra_info"]["question"]: read_kept(row["extra_info"]) for row in rows}


def rows(count=40, **further):
    return [{"question": f"What is {n}?", "answer": str(n), "level": n % 3, "meta": {"n": n}} for n in range(count)]


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_columns_keep_their_types_in_all_three_splits(tmp_path):
    odd = [{"question": "Odd?", "answer": "1", "level": [1.5, None, {"ä": True}]}, {"question": "Bare?", "answer": "1"}]
    path = write_jsonl(tmp_path / "a.jsonl", rows() + odd)
    data = made(tmp_path, f"data.file.train={path}", "data.file.keep=[level,meta.n]")
    found = kept(*data.train_files, data.held_back_files, *data.validation_files)
    assert len(found) == 42 and all(list(extra) == ["level", "meta.n"] for extra in found.values())
    assert found["What is 7?"] == {"level": 1, "meta.n": 7}
    assert found["Odd?"] == {"level": [1.5, None, {"ä": True}], "meta.n": None}
    assert found["Bare?"] == {"level": None, "meta.n": None}


def test_columns_of_parquet_and_csv(tmp_path):
    when, price = datetime.datetime(2024, 5, 1, 12), Decimal("1.50")
    table = [row | {"when": when, "price": price, "day": when.date()} for row in rows(20)]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "p.parquet")
    with (tmp_path / "c.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([["question", "answer", "level"], *([f"Q {n}", n, n % 2] for n in range(20))])
    given = f"[{{path: {tmp_path}/p.parquet, keep: [when, price, day, meta, meta.n]}},{tmp_path}/c.csv]"
    data = made(tmp_path, f"data.file.train={given}", "data.file.keep=[level]")
    found = kept(*data.train_files, data.held_back_files, *data.validation_files)
    expected = {"when": "2024-05-01T12:00:00", "price": "1.50", "day": "2024-05-01", "meta": {"n": 3}, "meta.n": 3}
    assert found["What is 3?"] == expected and found["Q 3"] == {"level": "1"} and len(found) == 40


def test_files_with_and_without_kept_columns_share_the_held_back_problems(tmp_path):
    a, b = write_jsonl(tmp_path / "a.jsonl", rows()), tmp_path / "b.jsonl"
    write_jsonl(b, [{"question": f"B {n}", "answer": str(n)} for n in range(40)])
    for order in (f"[{{path: {a}, keep: [level]}},{b}]", f"[{b},{{path: {a}, keep: [level]}}]"):
        data = made(tmp_path, f"data.file.train={order}", "data.held_back=20", f"run_dir={tmp_path}/{len(order)}")
        found = kept(data.held_back_files)
        assert {text.startswith("What") for text in found} == {True, False}
        assert all(bool(extra) == text.startswith("What") for text, extra in found.items())


def test_columns_of_rows_that_call(tmp_path):
    tool = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    calls = [{"name": "f", "arguments": {"a": 1}}]
    table = [{"question": f"Q {n}", "answer": calls, "tools": [tool], "category": f"c{n % 2}"} for n in range(20)]
    path = write_jsonl(tmp_path / "a.jsonl", table)
    given = [f"data.file.train={path}", "data.file.tools=tools", "data.file.keep=[category]", "data.prompt=hermes"]
    data = made(tmp_path, *given)
    found = kept(*data.train_files)
    assert {"category": "c1"} in found.values() and {"category": "c0"} in found.values()


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_column_that_no_row_has_is_refused_with_the_nearest(tmp_path, kind):
    path, table = tmp_path / f"a.{kind}", [{"question": f"Q {n}", "answer": str(n), "Difficulty": n} for n in range(9)]
    match kind:
        case "jsonl":
            write_jsonl(path, table)
        case "json":
            path.write_text(json.dumps(table))
        case "csv":
            with path.open("w", newline="") as stream:
                csv.writer(stream).writerows([list(table[0]), *(row.values() for row in table)])
        case "parquet":
            pq.write_table(pa.Table.from_pylist(table), path)
    with pytest.raises(UserError, match="'dificulty': did you mean 'Difficulty'.*question, answer, Difficulty"):
        made(tmp_path, f"data.file.train={path}", "data.file.keep=[dificulty]")


def test_a_value_that_json_cannot_hold_is_a_malformed_row(tmp_path, capsys):
    table = [row | {"blob": b"\xff" if n < 2 else None} for n, row in enumerate(rows())]
    pq.write_table(pa.Table.from_pylist(table), tmp_path / "p.parquet")
    made(tmp_path, f"data.file.train={tmp_path}/p.parquet", "data.file.keep=[blob]")
    assert "malformed 2 x: blob holds bytes, which JSON cannot hold" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["level", "[1]", "[level,null]", "['']"])
def test_values_that_are_no_list_of_names(value):
    with pytest.raises(UserError, match=r"data\.file\.keep"):
        compose("prepare", ["data=file", "data.file.train=a.jsonl", f"data.file.keep={value}"])


@pytest.mark.parametrize("text", ["[1]", "{", 3])
def test_a_field_that_is_no_object_is_one_sentence(text):
    with pytest.raises(UserError, match=r"extra_info\.row .*prepare the data again"):
        read_kept({"row": text})
