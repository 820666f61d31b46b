"""The shipped configurations on files laid out as the public sets are, and the evaluation sets by path."""

import json

import pyarrow.parquet as pq
import pytest
from pyarrow import Table

from retool_mcore.coldstart.config import EvaluationFile, load
from retool_mcore.coldstart.dedup import Decontaminate
from retool_mcore.coldstart.normalise import normalise
from retool_mcore.coldstart.rows import Drop, Row
from retool_mcore.coldstart.source import read
from retool_mcore.config import CONFIG_DIR

PROBLEM = "Find the number of ordered pairs $(m, n)$ of positive integers below one hundred with $m^2 + n^2 = 25$."
SOLUTION = "The squares are 9 and 16 in either order, so there are \\boxed{2} pairs."
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    f"$Answer (without quotes) where $Answer is the answer to the problem.\n\n{PROBLEM}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
THOUGHTS = (
    "<|begin_of_thought|>\n\nSquares.\n\n<|end_of_thought|>\n\n"
    f"<|begin_of_solution|>\n\n{SOLUTION}\n\n<|end_of_solution|>"
)
METADATA = {
    "problem": PROBLEM,
    "deepseek_reasoning": "Squares.",
    "deepseek_solution": SOLUTION,
    "ground_truth_solution": f"Try all. {SOLUTION}",
    "domain": "math",
    "source": "olympiads",
    "test_cases": None,
    "starter_code": None,
}
CONVERSATIONS = {
    "system": "Your role as an assistant ...",
    "conversations": [
        {"from": "user", "value": f"Return your final response within \\boxed{{}}. {PROBLEM}"},
        {"from": "assistant", "value": THOUGHTS},
    ],
}
NUMINA = {
    "problem": PROBLEM,
    "solution": SOLUTION,
    "answer": "2",
    "problem_type": "Number Theory",
    "question_type": "math-word-problem",
    "problem_is_valid": "Yes",
    "solution_is_valid": "Yes",
    "source": "olympiads",
    "synthetic": False,
}
NUMINA_COT = {
    "source": "olympiads",
    "problem": PROBLEM,
    "solution": SOLUTION,
    "messages": [{"content": PROBLEM, "role": "user"}, {"content": SOLUTION, "role": "assistant"}],
}
DAPO_MATH = {
    "data_source": "math_dapo",
    "prompt": [{"content": DAPO, "role": "user"}],
    "ability": "MATH",
    "reward_model": {"ground_truth": "2", "style": "rule-lighteval/MATH_v2"},
    "extra_info": {"index": "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079"},
}
TO_CONVERSATIONS = (
    "source.where=null",
    "source.columns.problem=conversations.0.value",
    "source.columns.reasoning=conversations.1.value",
    "source.columns.answer=null",
)


@pytest.mark.parametrize(
    "name, overrides, layout, reasoning",
    [
        ("openthoughts", (), METADATA, f"Squares.\n\n{SOLUTION}"),
        ("openthoughts", TO_CONVERSATIONS, CONVERSATIONS, f"Squares.\n\n\n\n\n\n{SOLUTION}"),
        ("numinamath", (), NUMINA, SOLUTION),
        ("numinamath", ("source.where=null", "source.columns.answer=solution"), NUMINA_COT, SOLUTION),
        ("dapo", (), DAPO_MATH, ""),
    ],
)
def test_a_configuration_reads_its_set(tmp_path, name, overrides, layout, reasoning):
    path = tmp_path / "train-00000-of-00001.parquet"
    pq.write_table(Table.from_pylist([layout]), path)
    config = load(CONFIG_DIR / "coldstart" / f"{name}.yaml", [f"source.path={tmp_path}", *overrides])
    (outcome,) = read(config.source)
    row = normalise(outcome.row)
    assert (row.problem, row.reasoning, row.answer) == (PROBLEM, reasoning, "2")


@pytest.mark.parametrize(
    "name, changed", [("openthoughts", {"domain": "code"}), ("numinamath", {"problem_is_valid": "No"})]
)
def test_rows_of_another_kind_are_counted(tmp_path, name, changed):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps((METADATA if name == "openthoughts" else NUMINA) | changed))
    (outcome,) = read(load(CONFIG_DIR / "coldstart" / f"{name}.yaml", [f"source.path={path}"]).source)
    assert outcome.row is None and outcome.reason == "not in source.where"


@pytest.mark.parametrize(
    "name, column, layout",
    [
        ("aime_2024_problems.parquet", "Problem", {"ID": "2024-I-1", "Problem": PROBLEM, "Solution": "", "Answer": 2}),
        ("aime-2024.parquet", "prompt.0.content", DAPO_MATH),
        ("aime_2025.parquet", "problem", {"problem": PROBLEM, "answer": "2", "solution": "", "id": "0"}),
        ("amc.parquet", "problem", {"id": 0, "problem": PROBLEM, "answer": 2.0, "url": "https://example.org"}),
        ("math_500.jsonl", "problem", {"problem": PROBLEM, "solution": "", "answer": "2", "subject": "x", "level": 2}),
    ],
)
def test_evaluation_sets_by_path_keep_their_problems_out(tmp_path, name, column, layout):
    path = tmp_path / name
    if path.suffix == ".parquet":
        pq.write_table(Table.from_pylist([layout]), path)
    else:
        path.write_text(json.dumps(layout))
    check = Decontaminate([EvaluationFile(path=str(path), problem=column)], 10)
    for text, reason in ((PROBLEM, "in an evaluation set"), (f"Hard. {PROBLEM} Explain.", "shares words")):
        with pytest.raises(Drop, match=reason):
            check(Row("k", 0, text, "", "2"))
    # The wrapper of a set is no part of its problems.
    assert check(Row("k", 0, f"{DAPO.partition(PROBLEM)[0]} What is one and one?", "", "2"))
