"""Truths that give one value in two forms, which `retool prepare` counts."""

import pytest

from retool_mcore.data.prepare import write_problems
from retool_mcore.data.records import Problem
from retool_mcore.rewards.truths import names_two_forms, report_two_forms


@pytest.mark.parametrize(
    "truth",
    [
        r"\frac{3}{4} or 0.75",
        r"$\frac{3}{4}$ \text{ or } $0.75$",
        r"2\sqrt{3} \text{ or } \sqrt{12}",
        r"\mathbb{R} (i.e., all)",
        "60, that is, one minute",
        "1/2, or equivalently 0.5",
    ],
)
def test_two_forms_of_one_value(truth):
    assert names_two_forms(truth)


@pytest.mark.parametrize(
    "truth", ["1 or 2", "x=1 or x=2", r"x<1 \text{ or } x>3", "0.75", "for", "blue or red", "", "or", r"\text{or } 5"]
)
def test_other_truths(truth):
    assert not names_two_forms(truth)


def test_rows_are_counted(tmp_path):
    file = tmp_path / "train.parquet"
    truths = ["3/4 or 0.75", "7", "1 or 2", "5 (i.e. five)"]
    problems = [Problem("x", f"question {n}", truth, n) for n, truth in enumerate(truths)]
    write_problems(problems, file, template="retool", split="train")
    assert report_two_forms([file]) == [
        "  2 rows whose truth names two forms of one value, which no single answer meets, as '3/4 or 0.75'"
    ]
    write_problems(problems[1:3], file, template="retool", split="train")
    assert report_two_forms([file]) == []
