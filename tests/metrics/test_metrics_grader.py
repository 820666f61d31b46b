from retool_mcore.metrics.sandbox import PARTS, grader_metrics
from retool_mcore.rewards.equivalence import decide_once
from retool_mcore.rewards.math import score
from retool_mcore.rewards.tool_calls import UNREAD
from retool_mcore.rewards.verdict import CRASHED


def test_answers_are_counted_by_the_part_that_decided():
    records = [{"graded_by": part} for part in ("front", "memo", "front", "undecided", "")] + [{}]
    counts = {"front": 2.0, "memo": 1.0, "undecided": 1.0, "copied": 0.0, "crashed": 0.0, "unread": 0.0}
    assert grader_metrics(records) == counts
    assert grader_metrics([{"graded_by": ""}, {}]) == {}


def test_the_parts_are_the_graders_own():
    pairs = [("3.5 kg", "3500 g"), ("3.5 kg", "3500 g"), ("9^{9^{9^{9}}}", "5")]
    copied = score(r"\boxed{3+4}", "7", question="Compute $3+4$.")["graded_by"]
    assert [*(decide_once(*pair)[1] for pair in pairs), copied, CRASHED, UNREAD] == [*PARTS]
