"""benchmarks/learning/report.py: at which step a claim is judged when runs were cut."""

import pytest
from omegaconf import OmegaConf

from benchmarks.learning import report

CLAIM = {"paper": "P", "of": "accuracy", "better": "A", "worse": ["B"], "rule": "all", "points": 0}
PLAN = OmegaConf.create(
    {"bases": [1, 2], "seeds": [1], "arms": {"A": {}, "B": {}}, "before": {}, "claims": {"c": CLAIM}}
)


def run(curve: list[float], **validations: float) -> dict:
    found = {step.removeprefix("after_"): value for step, value in validations.items()}
    end = {"all": list(found.values())[-1]} if found else None
    curves = {"reward/accuracy": curve}
    return {"steps": len(curve), "start": {"all": 0.3}, "end": end, "validations": found, "curves": curves}


def runs(last: dict) -> dict:
    whole = run([0.0] * 10, after_5=0.5, after_10=0.9)
    return {"b1-A-s1": whole, "b2-A-s1": whole, "b1-B-s1": run([0.0] * 10, after_5=0.4, after_10=0.2), "b2-B-s1": last}


def test_a_claim_is_judged_on_the_last_validation_that_all_its_runs_have_reached():
    (row,) = report.judge(PLAN, runs(run([0.0] * 7, after_5=0.4)))
    assert row["after_step"] == 5 and row["pairs"] == pytest.approx([10.0, 10.0])
    (row,) = report.judge(PLAN, runs(run([0.0] * 10, after_5=0.4, after_10=0.1)))
    assert row["after_step"] == 10 and row["pairs"] == pytest.approx([70.0, 80.0])


def test_a_run_without_a_validation_counts_with_its_starts_accuracy():
    (row,) = report.judge(PLAN, runs(run([0.0] * 3)))
    assert row["after_step"] == 10 and row["pairs"] == pytest.approx([70.0, 60.0])


def test_a_claim_of_training_counts_the_last_steps_that_all_its_runs_have():
    plan = OmegaConf.merge(PLAN, {"claims": {"c": {"of": "training", "rule": "within", "points": 3}}})
    found = {f"b{base}-{arm}-s1": run([0.5] * 9) for base in (1, 2) for arm in "AB"}
    found["b1-A-s1"] = run([0.0] + [0.52] * 8 + [1.0] * 20)
    found["b2-A-s1"] = run([0.0] + [0.51] * 8)
    (row,) = report.judge(plan, found)
    assert row["pairs"] == pytest.approx([2.0, 1.0]) and row["criterion"].startswith("A - B, in training")
