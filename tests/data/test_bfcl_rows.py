"""The Berkeley leaderboard's data: from its package or its folder, by category, with what is left out named."""

import json
import sys

import pytest
from function_rows import BFCL, BFCL_ANSWER

from retool_mcore.config import compose
from retool_mcore.data.bfcl import VERSION
from retool_mcore.data.formats import get_format
from retool_mcore.data.kept import read_kept
from retool_mcore.data.prepare import prepare_rl
from retool_mcore.data.records import CallProblem, Malformed
from retool_mcore.data.schema import check_rl, rows_of
from retool_mcore.data.sources import get_source, left_out, load
from retool_mcore.errors import UserError
from retool_mcore.rewards.tool_calls import judge
from retool_mcore.tools.recorded import ReplayTable
from retool_mcore.tools.toolbox import Toolbox
from retool_mcore.train import prepare

JAVA = {
    "name": "Timer.start",
    "description": "Starts.",
    "parameters": {
        "type": "dict",
        "properties": {
            "ticks": {"type": "long", "description": "How many."},
            "marks": {"type": "ArrayList", "description": "When.", "items": {"type": "integer"}},
        },
        "required": ["ticks"],
    },
}


def row(identity, **changed):
    return BFCL | {"id": identity} | changed


FILES = {
    "simple_python": [row("simple_python_0"), row("simple_python_1")],
    "live_multiple": [row("live_multiple_0-0-0"), row("live_multiple_1-0-0")],
    "simple_java": [row("simple_java_0", function=[JAVA])],
    "irrelevance": [row("irrelevance_0"), row("irrelevance_1", function=[])],
    "live_relevance": [row("live_relevance_0-0-0")],
    "multi_turn_base": [{"id": f"multi_turn_base_{n}", "question": [[], []]} for n in range(3)],
    "web_search": [{"id": "web_search_0", "question": [[]]}],
}
ANSWERS = {
    "simple_python": ["simple_python_0", "simple_python_1"],
    "live_multiple": ["live_multiple_0-0-0", "live_multiple_1-0-0"],
    "simple_java": ["simple_java_0"],
    "multi_turn_base": [],
}
GIVEN = {
    "live_multiple_1-0-0": [{"geometry.area": {"base": [10], "height": [5], "unit": ["", None]}}],
    "simple_java_0": [{"Timer.start": {"ticks": [5], "marks": ["", [1, 2]]}}],
}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))


@pytest.fixture
def folder(tmp_path):
    data = tmp_path / "site" / "bfcl_eval" / "data"
    for category, rows in FILES.items():
        write(data / f"BFCL_v4_{category}.json", rows)
    for category, names in ANSWERS.items():
        rows = [{"id": name, "ground_truth": GIVEN.get(name, BFCL_ANSWER["ground_truth"])} for name in names]
        write(data / "possible_answer" / f"BFCL_v4_{category}.json", rows)
    (data / "BFCL_v4_format_sensitivity.json").write_text(json.dumps({"simple_python": ["a", "b"]}, indent=1))
    write(data / "multi_turn_func_doc" / "math_api.json", [{"name": "add"}])
    write(data / "unused_datasets" / "question" / "BFCL_v4_sql.json", [{"id": "sql_0"}])
    return data


@pytest.fixture
def package(folder, monkeypatch):
    """The package, which cannot be imported without the libraries that nobody here needs."""
    (folder.parent / "__init__.py").write_text("raise ImportError('anthropic is missing')\n")
    monkeypatch.syspath_prepend(str(folder.parent.parent))
    return folder


def called(*calls):
    return "\n".join(f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in calls)


LEFT_OUT = [
    "left out 2 rows (format_sensitivity): other prompts for rows that are read",
    "left out 3 rows (multi_turn_base): several turns, judged by the state that executed calls leave",
    "left out 1 rows (web_search): searches the live web",
    "left out 1 files (multi_turn_func_doc): no questions of a category",
    "left out 1 files (unused_datasets): which the leaderboard no longer scores",
]


def test_categories_are_data_sources_and_the_rest_is_named_with_its_count(folder, tmp_path):
    assert left_out(str(folder)) == LEFT_OUT
    report = prepare_rl("bfcl", tmp_path / "out", location=folder)
    assert (report.rows, report.kept, report.malformed) == (8, 8, ())
    assert report.sources == {
        "bfcl/irrelevance": 2, "bfcl/live_multiple": 2, "bfcl/live_relevance": 1, "bfcl/simple_java": 1,
        "bfcl/simple_python": 2,
    }  # fmt: skip
    printed = "\n".join(report.lines())
    assert "2 rows whose right answer is no call" in printed and all(line in printed for line in LEFT_OUT)
    assert json.loads(report.path.read_text())["left_out"] == LEFT_OUT
    check_rl(tmp_path / "out/test.parquet")


def test_a_row_carries_what_the_official_checker_needs(folder, tmp_path):
    prepare_rl("bfcl", tmp_path / "out", location=folder)
    rows = {read_kept(one["extra_info"])["bfcl_id"]: one for one in rows_of(str(tmp_path / "out/test.parquet"))}
    assert list(rows) == [
        "irrelevance_0", "irrelevance_1", "live_multiple_0-0-0", "live_multiple_1-0-0", "live_relevance_0-0-0",
        "simple_java_0", "simple_python_0", "simple_python_1",
    ]  # fmt: skip
    kept = read_kept(rows["live_multiple_1-0-0"]["extra_info"])
    assert kept["category"] == "live_multiple" and json.loads(kept["function"]) == BFCL["function"]
    assert json.loads(kept["possible_answer"]) == GIVEN["live_multiple_1-0-0"]
    none = read_kept(rows["irrelevance_1"]["extra_info"])
    assert json.loads(none["possible_answer"]) == json.loads(none["function"]) == []


def test_every_row_has_a_right_answer(folder):
    problems = {p.extra["bfcl_id"]: p for p in load(get_source("bfcl"), folder) if isinstance(p, CallProblem)}
    area = ("geometry.area", {"base": 10, "height": 5})
    started = ("Timer.start", {"ticks": "5L", "marks": "new ArrayList<Integer>(Arrays.asList(1, 2))"})
    right = {
        "simple_python_0": [called((area[0], area[1] | {"at": {"lat": 1.5, "long": 2}}))],
        # An optional argument whose only other value is null fits when it is left out.
        "live_multiple_1-0-0": [called(area), called((area[0], area[1] | {"unit": None}))],
        "simple_java_0": [called(("Timer.start", {"ticks": "5L"})), called(started)],
        "irrelevance_0": ["None of them fits.", "<tool_call>[]</tool_call>"],
        "irrelevance_1": ["None of them fits."],
        "live_relevance_0-0-0": [called(area), called(("geometry.area", {}))],
    }
    for identity, texts in right.items():
        for text in texts:
            assert judge(text, problems[identity].answer)["acc"] == 1.0, (identity, text)
    wrong = {
        "simple_python_0": [called(area), "No."],
        "simple_java_0": [called(("Timer.start", {"ticks": 5})), called(("Timer.start", {"ticks": "5"}))],
        "irrelevance_0": [called(area), "<tool_call>{", "<tool_call>geometry.area()</tool_call>"],
        "live_relevance_0-0-0": ["No."],
    }
    for identity, texts in wrong.items():
        for text in texts:
            assert judge(text, problems[identity].answer)["acc"] == 0.0, (identity, text)
    described = json.loads(problems["simple_java_0"].tools)[0]["function"]["parameters"]["properties"]
    assert {part["type"] for part in described.values()} == {"string"} and "long" in described["ticks"]["description"]


def test_texts_compare_as_the_leaderboard_compares_them_where_asked(folder, tmp_path):
    text = called(("geometry.area", {"base": 10, "height": 5, "unit": "UNITS.", "at": {"lat": 1.5, "long": 2}}))
    for texts, acc in (("loose", 1.0), ("exact", 0.0)):
        words = ["data=bfcl", f"data.sources.bfcl.location={folder}", f"data.sources.bfcl.texts={texts}"]
        (part,) = prepare.listed_parts(compose("prepare", ["name=t", *words]).data)
        source = get_source(part.source) if isinstance(part.source, str) else part.source
        (problem, *_) = [p for p in load(source, part.location) if p.data_source == "bfcl/simple_python"]
        assert judge(text, problem.answer)["acc"] == acc


def test_the_package_is_read_and_not_imported(package, tmp_path):
    config = compose("prepare", ["name=t", f"runs_dir={tmp_path}", "data=bfcl"])
    (part,) = prepare.parts_of(config)
    assert (part.role, part.location) == ("eval", "bfcl-eval") and "bfcl_eval" not in sys.modules
    prepare.read_sources(config, [part])
    assert len(rows_of(list(config.data.validation_files))) == 8


def test_changed_answers_are_a_changed_input(folder, tmp_path):
    words = [f"runs_dir={tmp_path}", "data=bfcl", f"data.sources.bfcl.location={folder}"]
    config = compose("prepare", ["name=t", *words])
    prepare.read_sources(config, prepare.parts_of(config))
    assert prepare.changed_input(config) is None
    write(folder / "possible_answer/BFCL_v4_simple_java.json", [{"id": "simple_java_0", "ground_truth": []}])
    assert "BFCL_v4_simple_java.json changed" in prepare.changed_input(config)


def test_a_share_of_it_can_be_trained_on(package, tmp_path):
    words = ["data.sources.bfcl.role=rl", "data.held_back=1", "data.test_share=0.5"]
    for place, file in enumerate(FILES["simple_python"] + FILES["live_multiple"]):
        file["question"] = [[{"role": "user", "content": f"Area {place}?"}]]
    for category in ("simple_python", "live_multiple"):
        write(package / f"BFCL_v4_{category}.json", FILES[category])
    config = compose("prepare", ["name=t", f"runs_dir={tmp_path}", "data=bfcl", *words])
    prepare.read_sources(config, prepare.parts_of(config))
    sizes = [len(rows_of(list(files))) for files in (config.data.train_files, config.data.validation_files)]
    assert sum(sizes) + len(rows_of(config.data.held_back_files)) == 8 and min(sizes) > 0


def test_a_missing_package_is_one_sentence_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    command = rf"is not installed: run `pip install --no-deps bfcl-eval=={VERSION}`\.$"
    for words in (["data=bfcl"], ["data=file", "data.file.eval=bfcl-eval"]):
        with pytest.raises(UserError, match=command):
            prepare.parts_of(compose("prepare", ["name=t", f"runs_dir={tmp_path}", *words]))


def test_the_whole_folder_is_a_file_of_ones_own(folder, tmp_path, capsys):
    config = compose("prepare", ["name=t", f"runs_dir={tmp_path}", "data=file", f"data.file.eval={folder}"])
    prepare.read_sources(config, prepare.parts_of(config))
    printed = capsys.readouterr().out
    assert "8 rows read: 8 kept" in printed and LEFT_OUT[1] in printed
    (file,) = config.data.validation_files
    assert {one["data_source"] for one in rows_of(str(file))} >= {"bfcl/irrelevance", "bfcl/simple_java"}
    with pytest.raises(UserError, match="it has no traces"):
        prepare.parts_of(compose("prepare", ["name=t", "data=file", f"data.file.sft={folder}"]))


def test_one_file_of_it_may_be_named(folder):
    (first, second) = load(get_source("bfcl"), folder / "BFCL_v4_irrelevance.json")
    assert first.answer == second.answer == "[]"
    with pytest.raises(
        UserError, match=r"no category that is read: left out 3 rows \(multi_turn_base\): several turns"
    ):
        list(load(get_source("bfcl"), folder / "BFCL_v4_multi_turn_base.json"))


def test_a_row_without_an_answer_that_needs_one_is_counted(folder):
    write(
        folder / "possible_answer/BFCL_v4_simple_python.json", [{"id": "simple_python_0", "ground_truth": [{"f": {}}]}]
    )
    records = list(load(get_source("bfcl"), folder / "BFCL_v4_simple_python.json"))
    assert [record.reason for record in records if isinstance(record, Malformed)] == [
        "a call of ground_truth names a function that the row does not describe",
        "row has no field 'ground_truth'",
    ]


def test_a_row_without_functions_can_be_rolled_out(folder):
    from chatml_tokenizer import make_tokenizer

    _, empty = load(get_source("bfcl"), folder / "BFCL_v4_irrelevance.json")
    toolbox = Toolbox([], rows=ReplayTable()).for_row({"tools": empty.tools, "replies": empty.replies})
    assert toolbox.schemas == [] and toolbox.one_turn
    fmt = get_format("hermes", make_tokenizer())
    assert fmt.prompt_ids([{"role": "user", "content": "Area?"}], toolbox.schemas)
    (call,) = fmt.parse(
        '<tool_call>{"name": "code_interpreter", "arguments": {"code": "1"}}</tool_call>', toolbox.schemas
    )
    assert "unknown tool" in call.error
