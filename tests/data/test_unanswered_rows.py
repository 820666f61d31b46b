"""Rows without an answer: kept where the reward needs none, refused before a run that could not judge them."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.preflight.data import check_answers, listed
from retool_mcore.train import prepare

FREE = "recipe.reward.name=retool_mcore.rewards.outcome.environment"


def made(tmp_path, *overrides):
    given = ["data=file", "name=t", f"runs_dir={tmp_path}", f"data.file.train={tmp_path}/a.jsonl", *overrides]
    prepare.run(compose("prepare", given))
    return compose("rl", given)


def truths(data):
    files = [*data.train_files, data.held_back_files, *data.validation_files]
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return {row["extra_info"]["question"]: row["reward_model"]["ground_truth"] for row in rows}


def write(tmp_path, *answers, count=30):
    rows = [{"question": f"Q {n}", **({"answer": answers[n % len(answers)]} if answers else {})} for n in range(count)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_blank_answers_are_kept_where_the_reward_needs_none(tmp_path, capsys):
    write(tmp_path, "", None, "  ", "7", math.nan)
    config = made(tmp_path, FREE)
    found = truths(config.data)
    assert len(found) == 30 and found["Q 3"] == "7" and {found[f"Q {n}"] for n in (0, 1, 2, 4)} == {""}
    assert "24 rows have no answer" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"rows of .* have no answer, so nothing says which .* recipe\.right_from"):
        check_answers(listed(config.data.train_files), config.recipe)
    check_answers(listed(config.data.train_files), compose("rl", [FREE, "recipe.right_from=0.5"]).recipe)
    check_answers(listed(config.data.train_files), compose("rl", [FREE, "recipe.answer=environment"]).recipe)
    with pytest.raises(UserError, match=r"have no answer, which recipe\.reward\.name=torl compares with"):
        check_answers(listed(config.data.train_files), compose("rl", ["recipe=torl", "recipe.right_from=1"]).recipe)


def test_other_rewards_leave_such_rows_out(tmp_path, capsys):
    write(tmp_path, "", "7")
    config = made(tmp_path)
    assert set(truths(config.data).values()) == {"7"} and "malformed 15 x: answer is empty" in capsys.readouterr().out
    check_answers(listed(config.data.train_files), config.recipe)


@pytest.mark.parametrize("column", ["answer=null", "answer=answer"])
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_files_without_an_answer_column(tmp_path, column, kind):
    write(tmp_path)
    pq.write_table(pa.Table.from_pylist([{"question": f"Q {n}"} for n in range(30)]), tmp_path / "a.parquet")
    config = made(tmp_path, f"data.file.{column}", f"data.file.train={tmp_path}/a.{kind}", FREE)
    assert set(truths(config.data).values()) == {""}


def test_no_answer_column_at_all_is_no_silent_loss(tmp_path):
    """data.file.answer=null says so itself, whatever reward the run will have."""
    write(tmp_path)
    config = made(tmp_path, "data.file.answer=null")
    assert set(truths(config.data).values()) == {""}
    with pytest.raises(UserError, match=r"have no answer, which recipe\.reward\.name=retool compares with"):
        check_answers(listed(config.data.train_files), config.recipe)
    with pytest.raises(UserError, match="malformed"):
        made(tmp_path)


@pytest.mark.parametrize("answer", [True, ["1"], {"a": 1}])
def test_an_answer_of_another_kind_stays_malformed(tmp_path, answer, capsys):
    write(tmp_path, answer, "7")
    made(tmp_path, FREE)
    assert "malformed 15 x: answer is " in capsys.readouterr().out
