"""The public function-calling data sets in their exact columns, and what becomes of rows that are not."""

import json
import runpy
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.data.function_calls import read_calls
from retool_mcore.data.function_schema import row_tools, tool_schema
from retool_mcore.data.prepare import prepare_rl
from retool_mcore.data.records import CallProblem, Malformed, MalformedRow
from retool_mcore.data.schema import check_rl
from retool_mcore.data.sources import get_source, load
from retool_mcore.errors import UserError
from retool_mcore.rewards.tool_calls import judge

_rows = runpy.run_path(str(Path(__file__).with_name("function_rows.py")))
XLAM, TOOLACE, BFCL, BFCL_ANSWER = (_rows[name] for name in ("XLAM", "TOOLACE", "BFCL", "BFCL_ANSWER"))


def jsonl(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(source, location):
    return list(load(get_source(source), location))


def parameters(problem, name):
    schemas = {schema["function"]["name"]: schema["function"] for schema in json.loads(problem.tools)}
    return schemas[name]["parameters"]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_xlam(tmp_path, suffix):
    path = tmp_path / f"xlam{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist([XLAM]), path)
    else:
        path.write_text(json.dumps([XLAM], indent=1) if suffix == ".json" else json.dumps(XLAM) + "\n")
    (problem,) = read("xlam", path)
    assert problem.messages == (("user", XLAM["query"]),)
    assert json.loads(problem.answer) == json.loads(XLAM["answers"])
    assert parameters(problem, "weather") == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Its name."},
            "days": {"type": "integer", "description": "How far.", "default": 1},
        },
        "required": ["city"],
    }
    pair = parameters(problem, "convert")["properties"]["pair"]
    assert pair == {"type": "array", "items": {"type": "string"}, "description": "From and to."}


def test_toolace_gives_a_problem_for_each_turn_that_calls(tmp_path):
    first, second = read("toolace", jsonl(tmp_path / "toolace.jsonl", TOOLACE))
    assert first.messages == (("user", "What is hot in the US (and why)?"),)
    arguments = {"trend_type": "HOT", "country": 'the "US", (all)'}
    assert json.loads(first.answer) == [{"name": "Market Trends API", "arguments": arguments}]
    assert [role for role, _ in second.messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert json.loads(second.messages[1][1].removeprefix("<tool_call>").removesuffix("</tool_call>"))["name"]
    assert json.loads(second.answer) == [
        {"name": "tally", "arguments": {"items": [1, 2, 3], "exact": True}},
        {"name": "tally", "arguments": {"items": [1, 2, 3]}},
    ]
    (reply,) = json.loads(first.replies)
    assert reply["arguments"] == arguments and json.loads(reply["reply"])["results"] == {"top": "tin"}
    assert second.replies == "[]"
    # One conversation is on one side of a split, and each of its problems has a number of its own.
    assert first.question == second.question and first.key != second.key and first.index != second.index


@pytest.mark.parametrize("beside", [True, False])
def test_bfcl_with_its_answers_beside_or_in_the_row(tmp_path, beside):
    name = "BFCL_v3_simple.json"
    if beside:
        jsonl(tmp_path / name, BFCL)
        jsonl(tmp_path / "possible_answer" / name, BFCL_ANSWER)
    else:
        jsonl(tmp_path / name, BFCL | BFCL_ANSWER)
    (problem,) = read("bfcl", tmp_path)
    (call,) = json.loads(problem.answer)
    assert (problem.data_source, call["name"], call["required"]) == ("bfcl/simple", "geometry.area", ["base", "height"])
    assert call["accepted"] == BFCL_ANSWER["ground_truth"][0]["geometry.area"]
    assert call["types"] == {"base": "integer", "height": "float", "unit": "string", "at": "dict"}
    assert parameters(problem, "geometry.area")["properties"]["at"]["properties"]["lat"] == {"type": "number"}


def test_bfcl_without_answers_is_one_sentence(tmp_path):
    path = jsonl(tmp_path / "questions.json", BFCL)
    with pytest.raises(UserError, match=r"has no ground_truth, and there is no possible_answer/questions.json"):
        read("bfcl", path)


def test_rows_without_calls_say_that_none_is_right(tmp_path):
    none = XLAM | {"answers": "[]"}
    first, second = read("xlam", jsonl(tmp_path / "x.jsonl", none, none | {"tools": "[]"}))
    assert first.answer == second.answer == "[]" and second.tools == "[]"
    said = [{"from": "user", "value": "Hi."}, {"from": "assistant", "value": "Which market?"}] * 2
    talk = read("toolace", jsonl(tmp_path / "t.jsonl", TOOLACE | {"conversations": said}))
    assert [(problem.answer, len(problem.messages)) for problem in talk] == [("[]", 1), ("[]", 3)]
    report = prepare_rl("xlam", tmp_path / "out", location=jsonl(tmp_path / "y.jsonl", XLAM, none | {"query": "Hi."}))
    assert "  1 rows whose right answer is no call" in report.lines()


def test_answers_may_list_accepted_values(tmp_path):
    listed = [{"weather": {"city": ["Rome", "Roma"], "days": ["", 3]}}]
    tools = json.dumps(
        [{"name": "weather", "parameters": {"city": {"type": "str"}, "days": {"type": "int, optional"}}}]
    )
    (problem,) = read("xlam", jsonl(tmp_path / "x.jsonl", XLAM | {"answers": json.dumps(listed), "tools": tools}))
    for arguments, acc in (({"city": "Roma"}, 1), ({"city": "Rome", "days": 3}, 1), ({"city": "Rom"}, 0), ({}, 0)):
        call = json.dumps({"name": "weather", "arguments": arguments})
        assert judge(f"<tool_call>{call}</tool_call>", problem.answer)["acc"] == acc


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


TWICE = json.dumps(json.loads(XLAM["tools"])[:1] * 2)
BAD = [
    ("xlam", without(XLAM, "answers"), "row has no field 'answers'"),
    ("xlam", XLAM | {"tools": "[{"}, "tools is not JSON"),
    ("xlam", XLAM | {"tools": "[]"}, "tools is no list of functions"),
    ("xlam", XLAM | {"tools": TWICE}, "tools describes two functions of one name"),
    ("xlam", XLAM | {"answers": "null"}, "answers holds no call"),
    ("xlam", XLAM | {"answers": '[{"name": "convert"}]'}, "answers: a call has no arguments"),
    ("xlam", XLAM | {"answers": '[{"name": "x", "arguments": {}}]'}, "names a function that the row does not describe"),
    ("xlam", XLAM | {"answers": '[{"name": "weather", "arguments": {"city": 3}}]'}, "does not fit the function's own"),
    ("xlam", XLAM | {"query": " "}, "query is empty"),
    ("toolace", without(TOOLACE, "system"), "row has no field 'system'"),
    ("toolace", TOOLACE | {"system": "Be nice."}, "system holds no JSON list of functions"),
    ("toolace", TOOLACE | {"conversations": TOOLACE["conversations"][:1]}, "no turn answers the user"),
    ("toolace", TOOLACE | {"conversations": [{"from": "human", "value": "?"}]}, "from another than user"),
    ("bfcl", BFCL | BFCL_ANSWER | {"question": [[], []]}, "question is not one turn"),
    ("bfcl", BFCL | {"ground_truth": ["area(1)"]}, "ground_truth is not a list of"),
    ("bfcl", BFCL | {"ground_truth": [{"geometry.area": {"base": 10}}]}, "ground_truth is not a list of"),
]


@pytest.mark.parametrize(("source", "row", "reason"), BAD)
def test_a_row_that_cannot_be_used_says_why(tmp_path, source, row, reason):
    (record,) = read(source, jsonl(tmp_path / "rows.jsonl", row))
    assert isinstance(record, Malformed) and reason in record.reason and "\n" not in record.reason


def test_a_missing_column_of_a_parquet_file_is_one_sentence(tmp_path):
    pq.write_table(pa.Table.from_pylist([without(XLAM, "answers")]), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"has no column 'answers': it has id, query, tools\.$"):
        read("xlam", tmp_path / "x.parquet")


def test_prepare_writes_the_rows_tools_and_counts_what_it_drops(tmp_path):
    bad = XLAM | {"answers": "null"}
    location = jsonl(tmp_path / "xlam.jsonl", XLAM, bad, XLAM, bad, without(XLAM, "query"))
    report = prepare_rl("xlam", tmp_path / "out", location=location, template="tool_n1")
    assert (report.rows, report.kept, report.duplicates, len(report.malformed)) == (5, 1, 1, 3)
    assert "malformed 2 x: answers holds no call" in "\n".join(report.lines())
    assert json.loads(report.path.read_text())["reasons"]["answers holds no call"] == 2
    check_rl(tmp_path / "out/train.parquet")
    (row,) = pq.read_table(tmp_path / "out/train.parquet").to_pylist()
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert (row["ability"], row["reward_model"]["ground_truth"]) == (
        "function_calling",
        json.dumps(json.loads(XLAM["answers"]), sort_keys=True),
    )
    assert [schema["function"]["name"] for schema in row_tools(row["extra_info"])] == ["weather", "convert"]
    with pytest.raises(UserError, match=r"all 1 rows of xlam are malformed \(1 x: answers holds no call\)"):
        prepare_rl("xlam", tmp_path / "none", location=jsonl(tmp_path / "bad.jsonl", bad))


def test_the_same_question_with_other_tools_is_another_problem(tmp_path):
    fewer = XLAM | {"tools": json.dumps(json.loads(XLAM["tools"])[:1]), "answers": json.dumps(
        json.loads(XLAM["answers"])[:1])}  # fmt: skip
    first, second = read("xlam", jsonl(tmp_path / "x.jsonl", XLAM, fewer))
    assert isinstance(first, CallProblem) and first.key != second.key


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[f()]", [("f", {})]),
        (
            "[a.b(x=1, y='it\\'s'), c d(z={\"k\": [1, null]})]",
            [("a.b", {"x": 1, "y": "it's"}), ("c d", {"z": {"k": [1, None]}})],
        ),
        ('[f(x="a), g(b=1")]', [("f", {"x": "a), g(b=1"})]),
        ("[f(x=-2.5, y=(1, 2), z=False)]", [("f", {"x": -2.5, "y": [1, 2], "z": False})]),
    ],
)  # fmt: skip
def test_calls_as_python_text(text, calls):
    assert [(call["name"], call["arguments"]) for call in read_calls(text)] == calls


@pytest.mark.parametrize(
    "text", ["f()", "[]", "[f]", "[f(]", "[f(1)]", "[f(x=y)]", "[f(**k)]", "[f(x=1) g()]", "[f(x=1+)]", "[f(x=g())]"]
)
def test_text_that_is_no_call(text):
    with pytest.raises(MalformedRow):
        read_calls(text)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ("str", {"type": "string"}),
        ("List[List[int]]", {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
        ("Optional[float]", {"type": "number"}),
        ("Dict[str, int], optional", {"type": "object"}),
        ("Tuple[int, str]", {"type": "array"}),
        ("HashMap", {"type": "object"}),
        ("Union[int, str]", {}),
        ("any", {}),
    ],
)
def test_types_as_the_data_sets_name_them(described, expected):
    schema = tool_schema({"name": "f", "parameters": {"type": {"type": described}}}, "tools")
    assert schema["function"]["parameters"]["properties"]["type"] == expected
