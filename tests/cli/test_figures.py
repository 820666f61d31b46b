"""`retool figures`: what is drawn, and the numbers beside it."""

import csv

import pytest
from made_run import add_metrics, call, make_run, record

from retool_mcore.cli.figures import draw
from retool_mcore.cli.main import main
from retool_mcore.errors import UserError
from retool_mcore.metrics.records import write_step


def numbers(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_figure_has_its_pictures_and_its_numbers(tmp_path, capsys):
    run = add_metrics(make_run(tmp_path / "run"), steps=4)
    assert main(["figures", str(run)]) == 0
    names = {path.name for path in (run / "figures").iterdir()}
    assert names == {
        f"{f}.{kind}" for f in ("learning", "accuracy", "behaviour", "calls") for kind in ("png", "svg", "csv")
    }
    assert capsys.readouterr().out.split() == [str(run / "figures" / name) for name in sorted(names, key=list_order)]
    assert (run / "figures" / "calls.png").read_bytes().startswith(b"\x89PNG")
    rows = numbers(run / "figures" / "behaviour.csv")
    assert {row["panel"] for row in rows} >= {"code ratio"}
    assert [row["x"] for row in rows if row["panel"] == "code ratio"] == ["1", "2", "3", "4"]


def list_order(name):
    stem, kind = name.split(".")
    return ["learning", "accuracy", "behaviour", "calls"].index(stem), ["png", "svg", "csv"].index(kind)


def test_places_of_calls_are_shares_of_the_first_and_of_the_last_steps(tmp_path):
    run = tmp_path / "run"
    tokens = len(record(1, 0)["response_ids"])
    for step, place in ((1, 0), (2, tokens // 2), (3, tokens - 1)):
        calls = [call("print(1)", "success", place, 0), call("", "malformed", 0, 0)]
        write_step(run / "rl" / "trajectories", step, [record(step, 0, calls=calls)])
    draw([run], tmp_path / "out")
    found = {
        (row["curve"], round(float(row["x"]), 3)): float(row["y"]) for row in numbers(tmp_path / "out" / "calls.csv")
    }
    assert found["step 1", 0.025] == 1 and found["step 3", 0.975] == 1
    assert sum(found.values()) == 2 and not any("step 2" in curve for curve, _ in found)
    assert not (tmp_path / "out" / "behaviour.png").exists()


def test_runs_lie_over_each_other_by_their_names(tmp_path):
    runs = [add_metrics(make_run(tmp_path / name), steps=3) for name in ("tool", "text")]
    draw(runs, tmp_path / "out")
    curves = {row["curve"] for row in numbers(tmp_path / "out" / "accuracy.csv")}
    assert curves >= {"tool training", "text training"}


def test_nothing_to_draw_is_said(tmp_path):
    with pytest.raises(UserError, match="neither sft nor rl"):
        draw([tmp_path], tmp_path / "out")
