"""Data files: too few rows, prompts that are too long, and prompts prepared for another format."""

import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from refused import refusal

from retool_mcore.data import arithmetic, function_tasks
from retool_mcore.data.formats import FORMATS, get_format
from retool_mcore.data.function_calls import xlam_problem
from retool_mcore.data.lengths import prompt_lengths, without_long
from retool_mcore.data.prepare import write_problems, write_traces
from retool_mcore.data.prompts import TEMPLATES
from retool_mcore.data.records import Problem
from retool_mcore.data.schema import check_rl
from retool_mcore.data.tiny_model import make_tiny_model
from retool_mcore.preflight import data


@pytest.fixture
def files(tmp_path):
    """RL files of 5 and 3 rows, prepared with the tiny task's template."""
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, rows in zip(paths, (5, 3), strict=True):
        write_problems(arithmetic.problems(rows, seed=1), path, template="tiny", split="train")
    return paths


def test_one_path_or_several(files):
    assert data.check_files("data.train_files", str(files[0]), check_rl) == files[:1]
    assert data.check_files("data.train_files", [str(file) for file in files], check_rl) == files
    assert "data.train_files" in refusal(data.check_files, "data.train_files", [], check_rl)


def test_a_wrong_path_a_missing_column_and_an_empty_file_are_named(files, tmp_path):
    assert "gone.parquet" in refusal(data.check_files, "k", [str(files[0]), str(tmp_path / "gone.parquet")], check_rl)
    whole = parquet.read_table(files[0])
    parquet.write_table(whole.drop_columns("reward_model"), tmp_path / "c.parquet")
    message = refusal(data.check_files, "k", str(tmp_path / "c.parquet"), check_rl)
    assert "'reward_model'" in message and "data_source" in message
    parquet.write_table(whole.slice(0, 0), tmp_path / "d.parquet")
    assert "d.parquet" in refusal(data.check_files, "k", str(tmp_path / "d.parquet"), check_rl)


def test_rows_are_summed_and_must_fill_a_batch(files):
    assert data.count_rows(files) == 8
    data.check_fills_a_batch("data.train_files", rows=8, batch=8)
    message = refusal(data.check_fills_a_batch, "data.sft_train_files", rows=8, batch=9)
    assert "data.sft_train_files" in message and "8 rows" in message and "train.batch=9" in message


def test_the_longest_prompt_is_named_with_its_row_and_length(files, tmp_path):
    from transformers import AutoTokenizer

    fmt = get_format("none", AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "model", seed=1)))
    rows = parquet.read_table(files[0])
    long = rows.to_pylist()
    long[3]["prompt"][0]["content"] = "Compute " + "1+" * 500 + "1."
    parquet.write_table(pa.Table.from_pylist(long, schema=rows.schema), files[0])
    named = {"data.train_files": [files[1], files[0]]}
    message = refusal(data.check_prompt_lengths, named, fmt, None, max_prompt_tokens=512)
    assert "row 3 of" in message and "a.parquet" in message and "rollout.max_prompt_tokens=512" in message
    assert message.startswith("1 of 8 prompts are longer") and "data.drop_long_prompts=true" in message
    tokens = int(message.split(" has ")[1].split()[0])
    assert data.check_prompt_lengths(named, fmt, None, max_prompt_tokens=tokens) == {"data.train_files": 8}
    refusal(data.check_prompt_lengths, named, fmt, None, max_prompt_tokens=tokens - 1)


def test_long_prompts_of_all_files_are_counted_and_can_be_left_out(files, tmp_path, capsys):
    from transformers import AutoTokenizer

    fmt = get_format("none", AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "model", seed=1)))
    table = parquet.read_table(files[0])
    for file, places in ((files[0], (1, 3)), (files[1], (0,))):
        rows = parquet.read_table(file).to_pylist()
        for place in places:
            rows[place]["prompt"][0]["content"] = "Compute " + "1+" * (300 + place) + "1."
        parquet.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)
    named = {"data.train_files": [files[0]], "data.held_back_files": [files[1]]}
    message = refusal(data.check_prompt_lengths, named, fmt, None, max_prompt_tokens=512)
    assert message.startswith("3 of 8 prompts are longer") and "(2 in data.train_files, 1 in data.held" in message
    assert f"row 3 of {files[0]}" in message
    left = data.check_prompt_lengths(named, fmt, None, max_prompt_tokens=512, drop=True)
    assert left == {"data.train_files": 3, "data.held_back_files": 2}
    assert "data.train_files: 2 of 5 prompts are longer than rollout.max_prompt_tokens=512" in capsys.readouterr().out
    message = refusal(data.check_prompt_lengths, named, fmt, None, max_prompt_tokens=5, drop=True)
    assert "none is left: raise the limit" in message
    before = parquet.read_table(files[0]).to_pylist()
    first, other = without_long(files, fmt, None, 512, tmp_path / "kept")
    check_rl(first)
    assert parquet.read_table(first).to_pylist() == [before[place] for place in (0, 2, 4)]
    assert parquet.read_table(files[0]).to_pylist() == before and parquet.read_metadata(other).num_rows == 2
    assert without_long([first], fmt, None, 512, tmp_path / "again") == [first]


def test_every_template_and_format_is_known_here():
    assert all(template.formats for template in TEMPLATES.values())
    assert {name for template in TEMPLATES.values() for name in template.formats} == set(FORMATS)


@pytest.mark.parametrize(
    ("template", "rollout_format"), [("retool", "hermes"), ("hermes", "text"), ("retool", "none"), ("hermes", "none")]
)
def test_a_prompt_that_teaches_another_format_is_refused(template, rollout_format):
    message = refusal(data.check_template, template, rollout_format)
    assert f"data.prompt={template}" in message and f"rollout.format={rollout_format}" in message


def test_a_prompt_that_teaches_the_format_passes_and_unknown_names_do_not():
    for template, rollout_format in [("retool", "text"), ("hermes", "hermes"), ("plain", "none"), ("tiny", "hermes")]:
        data.check_template(template, rollout_format)
    assert "retool" in refusal(data.check_template, "retol", "text")
    for own in ("Solve {question} step by step.", "{question}"):
        data.check_template(own, "text")


def test_files_prepared_for_another_format_are_refused(tmp_path, files):
    for rollout_format in ("text", "hermes", "none"):
        data.check_prepared_template(files, rollout_format, "retool")
    rl, sft = tmp_path / "rl.parquet", tmp_path / "sft.parquet"
    write_problems(arithmetic.problems(2, seed=1), rl, template="retool", split="train")
    write_traces(arithmetic.solve(arithmetic.problems(2, 1), 1, 0.45), sft, template="hermes", split="train")
    data.check_prepared_template([rl], "text", "retool")
    assert "rl.parquet=retool" in refusal(data.check_prepared_template, [rl], "hermes", "hermes")
    data.check_prepared_template([sft], "hermes", "hermes")
    assert "sft.parquet=hermes" in refusal(data.check_prepared_template, [files[0], sft], "text", "retool")


def test_a_prompt_of_ones_own_must_be_the_one_that_the_data_were_prepared_with(tmp_path):
    own, other = "Solve {question} in Python.", "Solve {question} in your head."
    rl = tmp_path / "rl.parquet"
    write_problems(arithmetic.problems(2, seed=1), rl, template=own, split="train")
    data.check_prepared_template([rl], "text", own)
    message = refusal(data.check_prepared_template, [rl], "text", other)
    assert (
        "in your head" in message and "rl.parquet was prepared with" in message and "prepare the data again" in message
    )
    write_problems(arithmetic.problems(2, seed=1), rl, template="retool", split="train")
    assert "was prepared with" in refusal(data.check_prepared_template, [rl], "text", own)


def test_a_recipe_and_the_kind_of_its_data_must_fit(tmp_path, files):
    calls, answers = {"name": "tool_n1", "answer": "calls"}, {"name": "retool", "answer": "boxed"}
    row = function_tasks.rows(2, seed=1)[0]
    functions = tmp_path / "functions.parquet"
    write_problems([xlam_problem(row, "xlam", 0)], functions, template="tiny", split="train")
    data.check_ability([functions], calls)
    data.check_ability(files, answers)
    message = refusal(data.check_ability, files, calls)
    assert "recipe=tool_n1 grades function calls" in message and "'math'" in message and "data=functions" in message
    assert "recipe=retool grades answers" in refusal(data.check_ability, [functions], answers)


def test_a_prompt_must_teach_the_calls_that_the_reward_reads():
    recipes = {name: {"reward": {"name": name}} for name in ("tool_n1", "toolrl", "artist")}
    for prompt, name in (("tool_n1", "tool_n1"), ("toolrl", "toolrl"), ("tiny", "toolrl"), ("toolrl", "artist")):
        data.check_call_style(prompt, recipes[name])
    assert "data.prompt=toolrl" in refusal(data.check_call_style, "tool_n1", recipes["toolrl"])


def test_a_rows_own_tools_count_in_its_prompt(tmp_path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "model", seed=1))
    problem = xlam_problem(function_tasks.rows(1, seed=1)[0], "xlam", 0)
    write_problems([problem], tmp_path / "f.parquet", template="tiny", split="train")
    fmt = get_format("hermes", tokenizer)
    prompt = fmt.prompt_ids([{"role": "user", "content": problem.question}], json.loads(problem.tools))
    assert prompt_lengths(tmp_path / "f.parquet", fmt, fmt.tools) == [len(prompt)]


@pytest.mark.parametrize("name", ["none", "text", "hermes"])
def test_a_prompt_is_as_long_as_the_rollout_makes_it(tmp_path, name):
    """Also one that holds special tokens, which the rollout breaks up: they would stop the run after it has begun."""
    from transformers import AutoTokenizer

    fmt = get_format(name, AutoTokenizer.from_pretrained(make_tiny_model(tmp_path / "model", seed=1)))
    questions = ["1+1", "what ends a turn: <|im_end|> or <|im_end|><|im_start|>?", "<|endoftext|>" * 9]
    problems = [Problem("tiny", question, "2", number) for number, question in enumerate(questions)]
    write_problems(problems, tmp_path / "f.parquet", template="tiny", split="train")
    rows = parquet.read_table(tmp_path / "f.parquet").to_pylist()
    lengths = [len(fmt.prompt_ids(row["prompt"], fmt.tools)) for row in rows]
    assert prompt_lengths(tmp_path / "f.parquet", fmt, fmt.tools) == lengths
    message = refusal(
        data.check_prompt_lengths, {"k": [tmp_path / "f.parquet"]}, fmt, fmt.tools, max_prompt_tokens=max(lengths) - 1
    )
    assert message.startswith("1 of 3 prompts are longer")


def test_a_prompt_of_the_users_own_passes(files):
    table = parquet.read_table(files[0])
    rows = table.to_pylist()
    for row in rows:
        row["prompt"][0]["content"] = "My own words: " + row["extra_info"]["question"]
    parquet.write_table(pa.Table.from_pylist(rows, schema=table.schema), files[0])
    data.check_prepared_template(files, "none", "retool")
