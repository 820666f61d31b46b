import io
import json

import pytest
from rich.console import Console

from retool_mcore.cli.summary import print_table, rows
from retool_mcore.cluster import status
from retool_mcore.errors import UserError


@pytest.fixture
def finished(tmp_path):
    for policy, accuracy in (("init", 0.01), ("sft", 0.4), ("rl", 0.8)):
        folder = tmp_path / "eval" / policy
        folder.mkdir(parents=True)
        metrics = {
            "k": 4,
            "samples": 1024,
            "accuracy": {"arithmetic": {"mean@4": accuracy, "best@4": 0.9, "maj@4": 0.5}},
            "behaviour": {"arithmetic": {"code_ratio": 0.65, "response_length": 101.4}},
            "step": 40,
        }
        (folder / "metrics.json").write_text(json.dumps(metrics))
    for stage, name in (("sft", "train/loss"), ("rl", "critic/score/mean")):
        (tmp_path / stage / "metrics").mkdir(parents=True)
        lines = [json.dumps({"step": step, "data": {name: step / 40}}) for step in range(1, 41)]
        (tmp_path / stage / "metrics" / "attempt_001.jsonl").write_text("\n".join(lines) + "\n")
        (tmp_path / stage / "attempts.jsonl").write_text('{"seconds": 90}\n{"seconds": 60.0}\n')
    return tmp_path


def test_table(finished):
    titles, cells = rows(finished)
    assert titles == ["", "arithmetic mean@4", "code ratio", "response tokens", "steps", "minutes"]
    assert cells == [
        ["before SFT", "1.0 %", "65.0 %", "101", "-", "-"],
        ["after SFT", "40.0 %", "65.0 %", "101", "40", "2.5"],
        ["after RL", "80.0 %", "65.0 %", "101", "40", "2.5"],
    ]
    out = io.StringIO()
    print_table(finished, Console(file=out, width=120))
    assert "after RL" in out.getvalue() and "80.0 %" in out.getvalue()


def test_several_sources_have_a_column_each(finished):
    metrics = {
        "accuracy": {"aime_2024": {"mean@32": 0.5}, "aime_2025": {"mean@32": 0.25}},
        "behaviour": {"aime_2024": {"code_ratio": 1.0}, "aime_2025": {"code_ratio": 0.5}},
    }
    for policy in ("init", "sft", "rl"):
        (finished / "eval" / policy / "metrics.json").write_text(json.dumps(metrics))
    titles, cells = rows(finished)
    assert titles[1:3] == ["aime_2024 mean@32", "aime_2025 mean@32"]
    assert cells[2][1:5] == ["50.0 %", "25.0 %", "75.0 %", "-"]


def test_missing_parts_are_dashes(tmp_path):
    (tmp_path / "eval").mkdir()
    assert rows(tmp_path)[1] == [[title, "-", "-", "-", "-", "-"] for title in ("before SFT", "after SFT", "after RL")]


@pytest.mark.parametrize("text", ["{", "3", "{}"])
def test_a_broken_metrics_file_is_named(finished, text):
    (finished / "eval" / "sft" / "metrics.json").write_text(text)
    with pytest.raises(UserError, match="eval/sft/metrics.json is not what `retool eval` writes"):
        rows(finished)


def test_a_stage_that_runs_is_told_with_its_time_left(finished, monkeypatch):
    row = status.Row("rl", "running", "12/40", "-", "-", "-", "-", "-", "step 13 since 5 s; 9 min left of the stage")
    monkeypatch.setattr(status, "rows", lambda run: [row, row._replace(stage="sft", state="complete")])
    out = io.StringIO()
    print_table(finished, Console(file=out, width=120))
    assert "rl: step 12/40, step 13 since 5 s; 9 min left of the stage" in out.getvalue()
    assert "sft: step" not in out.getvalue()


def test_problems_that_an_evaluation_read_itself_are_a_column_too(finished):
    """Their label names the files; `rl-best-mine` is of another policy, and a label of the user's own is not shown."""
    for label, policy, accuracy in (("rl-mine", "rl", 0.7), ("rl-best-mine", "rl-best", 0.9), ("warm", "rl", 0.1)):
        folder = finished / "eval" / label
        folder.mkdir()
        (folder / "config.yaml").write_text(f"policy: {policy}\n")
        metrics = {"accuracy": {"mine": {"mean@8": accuracy}}, "behaviour": {"mine": {"code_ratio": 1.0}}}
        (folder / "metrics.json").write_text(json.dumps(metrics))
    titles, cells = rows(finished)
    shown = {row[0]: row[1 + titles[1:].index("mine mean@8")] for row in cells}
    assert shown == {"before SFT": "-", "after SFT": "-", "after RL": "70.0 %", "best of RL": "90.0 %"}
