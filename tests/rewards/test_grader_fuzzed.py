"""What tests/support/grading/fuzz.py found stays mended."""

import json

import pytest

from retool_mcore.rewards.grader.structure import decide
from tests.support.grading import fuzz

FOUND = json.loads(fuzz.FOUND.read_text())

CHEATS = [
    ("not x=4", "4"),
    ("Not = 5", "5"),
    ("twice x=4", "4"),
    ("x=5 instead of x=4", "4"),
    ("x=5 = {x=4}", "4"),
    ("8 cm = 7 cm", "7 cm"),
    ("D = C", "(C)"),
    ("C...", "(C)"),
    ("C. or D", "(C)"),
    ("C. (wrong)", "(C)"),
    (r"C. \rightarrow D", "(C)"),
    (r"C. \\ D", "(C)"),
    (r"\text{\boldsymbol{C} is wrong}", "(C)"),
    ("**x^2+1** (or x^2-1)", "1+x^2"),
    (r"0 \boxed{2}", "0"),
]
RIGHT = [
    ("(C) 12", "C"),
    ("(C) none of the above", "C"),
    (r"\textbf{(C)} \frac{1}{2}", "C"),
    ("(D) cannot be determined", "D"),
    (r"C. x^2+1", "C"),
    (r"NO = \sqrt{6}", r"\sqrt{6}"),
    (r"\text{area} = 7 \text{ cm}", "7 cm"),
    ("**x^2+1**", "1+x^2"),
    ("2**3", "8"),
    (r"x = \boxed{5}", "5"),
]


@pytest.mark.parametrize("found", FOUND, ids=range(len(FOUND)))
def test_found_by_the_fuzzer(found):
    verdict = decide(found["answer"], found["truth"])
    assert found["same"] is None or verdict in (found["same"], None)


@pytest.mark.parametrize(("answer", "truth"), CHEATS)
def test_a_statement_about_a_value_is_not_the_value(answer, truth):
    assert decide(answer, truth) is not True


@pytest.mark.parametrize(("answer", "truth"), RIGHT)
def test_their_honest_neighbours_stay_right(answer, truth):
    assert decide(answer, truth) is True


def test_the_fuzzer_finds_a_grader_that_raises_or_accepts(monkeypatch, tmp_path):
    monkeypatch.setattr(fuzz, "decide", lambda answer, truth: len(answer) < 200 or 1 / 0)
    monkeypatch.setattr(fuzz, "ROUND", 100)
    kept = tmp_path / "found.json"
    monkeypatch.setattr(
        "sys.argv", ["fuzz", "--minutes", "0.001", "--found", str(kept), "--database", str(tmp_path / "db")]
    )
    assert fuzz.main() == 1
    assert {one["hunt"] for one in json.loads(kept.read_text())} >= {"pairs", "cheats"}
