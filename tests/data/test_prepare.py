import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from retool_mcore.data.formats import get_format
from retool_mcore.data.lengths import prompt_lengths
from retool_mcore.data.prepare import prepare_rl, prepare_sft, write_problems
from retool_mcore.data.records import Problem, normalise_question
from retool_mcore.data.schema import check_rl, check_sft
from retool_mcore.errors import UserError


def dapo_row(question, answer):
    return {
        "prompt": [{"role": "user", "content": question}],
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"index": "id"},
    }


def sft_row(question, solution):
    return {
        "messages": [
            {"role": "user", "content": f"rules\n*user question:*\n{question}"},
            {"role": "assistant", "content": solution},
        ]
    }


def write(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def solution(answer, code="1"):
    run = f"<code>\n```python\n{code}\n```\n</code>\n<interpreter>\n1\n</interpreter>"
    return f"So:\n{run}\n<answer>\\boxed{{{answer}}}</answer>"


def everything_accounted_for(report, out):
    saved = json.loads((out / "report.json").read_text(encoding="utf-8"))
    assert report.rows == report.kept + report.duplicates + len(report.malformed)
    assert saved["malformed"] == [{"row": m.row, "reason": m.reason} for m in report.malformed]
    assert [saved[key] for key in ("rows", "kept", "duplicates")] == [report.rows, report.kept, report.duplicates]
    for path, rows in report.files.items():
        assert pq.ParquetFile(path).metadata.num_rows == rows
    assert sum(report.files.values()) == report.kept
    return saved


def test_duplicates_are_dropped_counted_and_the_first_is_kept(tmp_path):
    rows = [dapo_row(f"Question {i % 4}?" if i < 4 else f" question  {i % 4}?\r\n", str(i % 4)) for i in range(400)]
    out = tmp_path / "out"
    report = prepare_rl("dapo_math_17k", out, location=write(tmp_path / "d.parquet", rows), template="tiny")
    everything_accounted_for(report, out)
    assert (report.rows, report.kept, report.duplicates, report.malformed) == (400, 4, 396, ())
    check_rl(out / "train.parquet")
    assert pq.read_table(out / "train.parquet").to_pylist()[2] == {
        "data_source": "dapo_math_17k",
        "prompt": [{"role": "user", "content": "Question 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": 2, "split": "train", "question": "Question 2?"},
        "agent_name": "retool",
    }
    assert report.lines()[0] == "dapo_math_17k: 400 rows read: 4 kept, 396 duplicates, 0 malformed"


def test_a_disputed_answer_removes_the_problem_and_names_both_answers(tmp_path):
    rows = [
        dapo_row(*pair) for pair in [("A?", "1"), ("B?", "073"), ("a?", "2"), ("B?", "73"), ("A?", "2"), ("A?", "1")]
    ]
    out = tmp_path / "out"
    report = prepare_rl("dapo_math_17k", out, location=write(tmp_path / "d.parquet", rows))
    saved = everything_accounted_for(report, out)
    assert (report.kept, report.duplicates) == (1, 2)
    assert [entry["row"] for entry in saved["malformed"]] == [0, 2, 4]
    assert saved["malformed"][0]["reason"] == "same question as row 2 but another answer: '1', there '2'"
    assert saved["malformed"][1]["reason"] == "same question as row 0 but another answer: '2', there '1'"
    assert pq.read_table(out / "train.parquet")["extra_info"].to_pylist()[0]["question"] == "B?"


def test_malformed_rows_are_reported_and_do_not_stop_the_run(tmp_path):
    rows = [dapo_row("A?", "1"), dapo_row("B?", None), {"prompt": [], "reward_model": None, "extra_info": None}]
    out = tmp_path / "out"
    report = prepare_rl("dapo_math_17k", out, location=write(tmp_path / "d.parquet", rows))
    saved = everything_accounted_for(report, out)
    assert saved["malformed"] == [
        {"row": 1, "reason": "ground_truth is null"},
        {"row": 2, "reason": "prompt is 0 messages, expected a list of one message"},
    ]
    assert report.lines() == [
        "dapo_math_17k: 3 rows read: 1 kept, 0 duplicates, 2 malformed",
        f"  {out / 'train.parquet'}: 1 rows",
        '  malformed 1 x: ground_truth is null; first row 1: {"prompt": [{"role": "user", "content": "B?"}], '
        '"reward_model": {"ground_truth": null, "style": "rul',
        '  malformed 1 x: prompt is 0 messages, expected a list of one message; first row 2: {"prompt": [], '
        '"reward_model": null}',
        f"  report: {out / 'report.json'}",
    ]


def test_all_rows_malformed_is_an_error_with_the_reason_and_a_report(tmp_path):
    path = write(tmp_path / "d.parquet", [dapo_row("A?", None), dapo_row("B?", None), dapo_row(" ", "1")])
    with pytest.raises(UserError, match=r"all 3 rows of dapo_math_17k are malformed \(2 x: ground_truth is null\)"):
        prepare_rl("dapo_math_17k", tmp_path / "out", location=path)
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["report.json"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["rows"] == 3


def test_an_empty_source_is_an_error(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(UserError, match="aime_2025 is an empty data set"):
        prepare_rl("aime_2025", tmp_path / "out", location=tmp_path / "empty.jsonl")


def test_an_evaluation_set_becomes_test_parquet(tmp_path):
    path = write(tmp_path / "a.parquet", [{"problem": "P?", "answer": "70"}])
    report = prepare_rl("aime_2025", tmp_path / "out", location=path, template="hermes")
    assert list(report.files) == [tmp_path / "out" / "test.parquet"]
    (row,) = pq.read_table(tmp_path / "out" / "test.parquet").to_pylist()
    assert row["prompt"][0]["content"].startswith("P?\nThe answer format must be")
    assert row["extra_info"]["split"] == "test"


def test_sft_keeps_several_solutions_and_splits_by_problem(tmp_path):
    rows = [sft_row(f"Q{i % 10}?", solution(i % 10, code=f"print({i})")) for i in range(30)]
    rows += [rows[3], sft_row("Q?", "no answer")]
    out = tmp_path / "out"
    path = write(tmp_path / "s.parquet", rows)
    report = prepare_sft("retool_sft", out, location=path, validation_fraction=0.2, seed=3)
    everything_accounted_for(report, out)
    assert (report.kept, report.duplicates, len(report.malformed)) == (30, 1, 1)
    halves = [pq.read_table(out / f"{split}.parquet").to_pylist() for split in ("train", "validation")]
    assert [len(half) for half in halves] == [24, 6]
    questions = [{normalise_question(row["question"]) for row in half} for half in halves]
    assert not questions[0] & questions[1]
    assert {row["extra_info"]["split"] for row in halves[1]} == {"validation"}
    for split in ("train", "validation"):
        check_sft(out / f"{split}.parquet")


@pytest.mark.parametrize(("template", "final"), [("retool", "<answer>\\boxed{5}</answer>"), ("hermes", "\\boxed{5}")])
def test_sft_shows_answer_tags_only_where_the_prompt_asks_for_them(tmp_path, template, final):
    path = write(tmp_path / "s.parquet", [sft_row("Q?", solution(5))])
    prepare_sft("retool_sft", tmp_path / "out", location=path, template=template, validation_fraction=0)
    (row,) = pq.read_table(tmp_path / "out" / "train.parquet").to_pylist()
    assert [segment["kind"] for segment in row["segments"]] == ["text", "code", "observation", "text"]
    assert row["segments"][-1]["text"] == final


def test_a_second_run_without_validation_leaves_no_stale_validation_file(tmp_path):
    path = write(tmp_path / "s.parquet", [sft_row(f"Q{i}?", solution(5)) for i in range(10)])
    prepare_sft("retool_sft", tmp_path / "out", location=path, validation_fraction=0.2)
    assert (tmp_path / "out" / "validation.parquet").exists()
    prepare_sft("retool_sft", tmp_path / "out", location=path, validation_fraction=0)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["report.json", "train.parquet"]


def test_wrong_choices_are_refused_before_a_row_is_read(tmp_path):
    nowhere = {"location": tmp_path / "none.parquet"}
    for call, message in [
        (lambda: prepare_rl("retool_sft", tmp_path, **nowhere), "retool_sft is a data set for sft, not for rl"),
        (lambda: prepare_sft("aime_2025", tmp_path, **nowhere), "aime_2025 is a data set for rl, not for sft"),
        (lambda: prepare_rl("aime", tmp_path, **nowhere), "unknown data set 'aime'"),
        (lambda: prepare_rl("aime_2025", tmp_path, template="hermis", **nowhere), "did you mean 'hermes'"),
        (lambda: prepare_rl("aime_2025", tmp_path, **nowhere), "no such file or folder"),
    ]:
        with pytest.raises(UserError, match=message):
            call()
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def fmt():
    # One token a character, so that the expected length can be counted by hand.
    characters = sorted(set("<user>assistant:\n abcdefghijklmnopqrstuvwxyzQUESTION-REPLY0123456789?[]"))
    model = models.WordLevel({c: i for i, c in enumerate(characters)}, unk_token="?")
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if m.role == 'assistant' %}$\n{% endif %}"
    template += "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?", eos_token="$", chat_template=template)
    return get_format("none", tokenizer)


def test_prompt_lengths_count_template_and_generation_prompt(tmp_path, fmt):
    problems = [Problem("tiny", "a" * length, "1", i) for i, length in enumerate([3, 40, 7, 40])]
    write_problems(problems, tmp_path / "rl.parquet", template="tiny", split="train")
    lengths = [len("<user>") + length + len("<assistant>") for length in (3, 40, 7, 40)]
    assert prompt_lengths(tmp_path / "rl.parquet", fmt) == lengths


def test_prompt_lengths_reach_past_the_first_row_group(tmp_path, fmt):
    problems = [Problem("tiny", "b" * (1 + (i == 1500)), "1", i) for i in range(1600)]
    write_problems(problems, tmp_path / "rl.parquet", template="tiny", split="train")
    lengths = prompt_lengths(tmp_path / "rl.parquet", fmt)
    assert len(lengths) == 1600 and lengths.index(len("<user>bb<assistant>")) == 1500
