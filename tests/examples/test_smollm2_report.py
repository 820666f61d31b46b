"""examples/smollm2/report.py: the table, and when it fails."""

import json

import pyarrow
import pyarrow.parquet as parquet
import pytest

from examples.smollm2 import report
from examples.smollm2.data import FAMILIES

ANSWERS = {family: str(number) for number, family in enumerate(FAMILIES)}


def trajectory(index, sample, pred, right, code):
    call = {"code": "print(1)", "malformed": False, "status": "ok", "stdout": "1", "stderr": "", "value": "", "turn": 0}
    calls = [call | {"duration_s": 0.1, "start": 0, "end": 3, "truncated": False, "tool": "", "arguments": ""}]
    outcome = {"pred": pred, "acc": float(right), "calls": calls if code else [], "response_ids": [1, 2, 3]}
    return {"index": index, "sample": sample} | outcome


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run whose evaluations have two samples of one problem of each family: none, one and both right."""
    monkeypatch.setattr(report, "right", lambda family, answer, row: answer == row["answer"] == ANSWERS[family])
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])
    problems = [{"question": f"of {family}?", "answer": ANSWERS[family], "family": family} for family in FAMILIES]
    (tmp_path / "problems").mkdir()
    (tmp_path / "problems/eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    (tmp_path / "data/eval/eval").mkdir(parents=True)
    shuffled = [{"extra_info": {"question": row["question"]}} for row in reversed(problems)]
    parquet.write_table(pyarrow.Table.from_pylist(shuffled), tmp_path / "data/eval/eval/test.parquet")
    for right, stage in enumerate(report.STAGES):
        records = []
        for index, row in enumerate(reversed(problems)):
            for sample in range(2):
                good = sample < right
                records.append(trajectory(index, sample, row["answer"] if good else "no", good, code=good))
        (tmp_path / "eval" / stage).mkdir(parents=True)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / "eval" / stage / "trajectories.jsonl").write_text(lines)
    (tmp_path / "seconds.txt").write_text("sft 60\nrl 90\nrl 30\neval rl 30\n")
    return tmp_path


def test_the_table_is_by_the_official_scorer_and_adds_up_minutes(run, capsys):
    assert report.main() == 0
    header, rule, init, sft, rl, different, minutes = capsys.readouterr().out.splitlines()
    assert header.count("|") == rule.count("|") == init.count("|")
    assert init.startswith("| before SFT | 0.0% | 0.0% | 0% | 3 | 0% |")
    assert sft.startswith("| after SFT | 50.0% | 100.0% | 50% | 3 | 50% |")
    assert rl.startswith("| after RL | 100.0% | 100.0% | 100% | 3 | 100% |")
    assert different.endswith("differ: 0")
    assert minutes == "minutes: 4 (sft 1.0, rl 2.0, eval rl 0.5)"


def test_it_fails_where_a_stage_raised_nothing(run, capsys):
    (run / "eval/rl/trajectories.jsonl").write_text((run / "eval/sft/trajectories.jsonl").read_text())
    assert report.main() == 1
    assert "not every stage raised the accuracy" in capsys.readouterr().err


def test_answers_on_which_the_verdicts_differ_are_counted(run, capsys):
    path = run / "eval/rl/trajectories.jsonl"
    path.write_text(path.read_text().replace('"pred": "1"', '"pred": "1.0"'))
    report.main()
    assert "differ: 2" in capsys.readouterr().out


def test_a_run_that_is_not_complete_is_one_sentence(run, capsys):
    (run / "eval/rl/trajectories.jsonl").unlink()
    assert report.main() == 2
    assert "There is no trajectory file" in capsys.readouterr().err
