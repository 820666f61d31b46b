"""`retool view PLAN`: which runs it opens, and the verdict that it shows."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from retool_mcore.cli.study import study_of
from retool_mcore.errors import UserError

BEGAN = 1_700_000_000.0


def plan_of(folder: Path, **changes) -> Path:
    path = folder / "study.yaml"
    claims = {"helps": {"better": "a", "worse": "b", "rule": "all", "points": 5}}
    plan = {"runs": str(folder), "arms": {"a": "a-s{seed}", "b": "b-s{seed}"}, "seeds": [1, 2], "measure": "training"}
    path.write_text(yaml.safe_dump(plan | {"claims": claims} | changes))
    os.utime(path, (BEGAN - 60, BEGAN - 60))
    return path


def run(folder: Path, last: float) -> None:
    (folder / "rl" / "metrics").mkdir(parents=True)
    (folder / "rl/metrics/attempt_001.jsonl").write_text(
        json.dumps({"step": 1, "data": {"reward/accuracy": last}}) + "\n"
    )
    started = datetime.fromtimestamp(BEGAN, UTC).isoformat()
    (folder / "rl/attempts.jsonl").write_text(json.dumps({"attempt": 1, "started": started, "seconds": 60.0}) + "\n")


def test_a_plan_opens_its_runs_by_arm_with_its_verdict(tmp_path):
    for arm, last in (("a", 0.8), ("b", 0.4)):
        for seed in (1, 2):
            run(tmp_path / f"{arm}-s{seed}", last)
    folders, study = study_of([plan_of(tmp_path)])
    assert [folder.name for folder in folders] == ["a-s1", "a-s2", "b-s1", "b-s2"]
    assert study.arms == ["a", "a", "b", "b"]
    found = study.compare()
    assert found["claims"][0]["met"] and found["claims"][0]["pairs"] == [40.0, 40.0]
    assert [row["arm"] for row in found["costs"]] == ["a", "b"]


def test_runs_that_have_not_begun_are_left_out_and_the_verdict_waits(tmp_path):
    run(tmp_path / "a-s1", 0.8)
    folders, study = study_of([plan_of(tmp_path)])
    assert [folder.name for folder in folders] == ["a-s1"] and study.arms == ["a"]
    found = study.compare()
    assert found["claims"] == [] and str(tmp_path / "a-s2") in found["missing"]


def test_what_is_no_plan_is_refused_and_folders_are_runs(tmp_path):
    assert study_of([Path("runs/a"), Path("runs/b")]) == ([Path("runs/a"), Path("runs/b")], None)
    with pytest.raises(UserError, match="none of its runs has begun RL"):
        study_of([plan_of(tmp_path)])
    with pytest.raises(UserError, match="is no plan"):
        study_of([tmp_path / "none.yaml"])
