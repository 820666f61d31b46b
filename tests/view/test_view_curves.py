"""What the overview draws, as the server sends it."""

import json
import re
from pathlib import Path

from made_run import add_evaluation, add_metrics, make_run, metrics_line

from retool_mcore.metrics.charts import TEXT
from retool_mcore.view.curves import Curves, configuration


def test_the_curves_follow_the_files_and_count_a_step_once(tmp_path):
    run = add_metrics(make_run(tmp_path / "run"), steps=6)
    curves = Curves(run)
    rl = curves.read()["stages"]["rl"]
    assert rl["steps"] == [1, 2, 3, 4, 5, 6] and rl["attempts"] == [[1, 1], [2, 3]]
    assert rl["metrics"]["val/accuracy"] == [None] * 4 + [0.283333, None]
    assert rl["metrics"]["val/accuracy_se"][4] == 0.04 and rl["alarms"][0]["step"] == rl["backs"][0]["step"] == 2
    path = run / "rl" / "metrics" / "attempt_002.jsonl"
    with path.open("a") as file:
        file.write(metrics_line(7, critic__score__mean=0.5) + metrics_line(8, critic__score__mean=float("nan"))[:-9])
        file.flush()
        assert curves.read()["stages"]["rl"]["steps"][-1] == 7  # half a line is none
        file.write(metrics_line(8, critic__score__mean=float("nan"))[-9:])
    rl = curves.read()["stages"]["rl"]
    assert rl["steps"] == list(range(1, 9)) and rl["metrics"]["critic/score/mean"][6:] == [0.5, None]


def test_only_what_was_added_is_read(tmp_path, monkeypatch):
    run = add_metrics(make_run(tmp_path / "run"), steps=6)
    curves, parsed = Curves(run), []
    curves.read()
    monkeypatch.setattr("retool_mcore.state.progress.parse", lambda line: parsed.append(line) or (0, {}))
    curves.read()
    assert parsed == []


def test_a_new_attempt_takes_the_place_of_the_steps_that_it_runs_again(tmp_path):
    run = add_metrics(make_run(tmp_path / "run"), steps=6)
    curves = Curves(run)
    curves.read()
    (run / "rl" / "metrics" / "attempt_003.jsonl").write_text(metrics_line(4, critic__score__mean=0.75))
    rl = curves.read()["stages"]["rl"]
    assert rl["steps"] == [1, 2, 3, 4] and rl["metrics"]["critic/score/mean"][3] == 0.75


def test_stages_evaluations_and_what_the_trainer_said_last(tmp_path):
    run = add_evaluation(add_metrics(make_run(tmp_path / "run"), steps=0), "sft", step=4)
    found = Curves(run).read()
    assert list(found["stages"]) == ["sft"] and not found["stages"]["sft"]["complete"]
    assert found["evaluations"]["sft"]["accuracy"]["arithmetic"]["mean@3"] == 0.667
    (run / "sft" / "COMPLETE").touch()
    (run / "sft" / "heartbeat").mkdir()
    (run / "sft" / "heartbeat" / "trainer.json").write_text(json.dumps({"phase": "update", "time": 1.0}))
    sft = Curves(run).read()["stages"]["sft"]
    assert sft["complete"] and sft["heartbeat"]["phase"] == "update"


def test_seeds_of_one_configuration_are_known_by_it(tmp_path):
    runs = [add_metrics(make_run(tmp_path / name), 2, seed=seed) for name, seed in (("a", 1), ("b", 2), ("c", 3))]
    with (runs[2] / "rl" / "config.yaml").open("a") as file:
        file.write("recipe: other\n")
    first, second, other = map(configuration, runs)
    assert first == second != other and configuration(tmp_path) is None


def test_every_metric_of_a_chart_is_described():
    page = Path(__file__).parents[2].joinpath("docs", "metrics.md").read_text()
    shown = set(re.findall(r'"(\w+/[\w/]+)"', TEXT))
    described = set()
    for name in re.findall(r"`([\w/{},.-]+)`", page):
        begin, brace, rest = name.partition("{")
        words, _, end = rest.partition("}")
        described |= {f"{begin}{word}{end}" for word in words.split(",")} if brace else {name}
    assert len(shown) > 20 and shown <= described, shown - described
