from retool_mcore.metrics.sandbox import PARTS, grader_metrics
from retool_mcore.rewards.equivalence import Grader
from retool_mcore.rewards.verdict import CRASHED


def test_answers_are_counted_by_the_part_that_decided():
    records = [{"graded_by": part} for part in ("front", "memo", "front", "killed", "")] + [{}]
    assert grader_metrics(records) == {"front": 2.0, "memo": 1.0, "engine": 0.0, "killed": 1.0, "crashed": 0.0}
    assert grader_metrics([{"graded_by": ""}, {}]) == {}


def test_the_parts_are_the_graders_own():
    assert set(PARTS) == {*Grader().counters(), CRASHED}
