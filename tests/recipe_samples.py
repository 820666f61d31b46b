"""Samples for the tests of rewards and filters, written as short as the case allows."""

from retool_mcore.rewards.sample import Sample
from retool_mcore.rollout.trajectory import Call, Turn


def call(status="success"):
    malformed = status == "malformed"
    return Call(None if malformed else "print(1)", malformed, status, "", "", None, 0.0, 0, 0, False)


def turn(programs=0, boxed=False, fakes=0):
    return Turn(programs=programs, boxed=boxed, fakes=list(range(fakes)), generate_s=0.0)


def sample(
    acc=1.0, calls=(), turns=(), text="", ground_truth="1", ids=(), spans=None, finish="answer", step=1, prefill="",
    **row,
):  # fmt: skip
    return Sample(
        acc=acc,
        ground_truth=ground_truth,
        text=text,
        ids=list(ids),
        policy_spans=[(0, len(ids))] if spans is None else spans,
        turns=list(turns),
        calls=[call(status) for status in calls],
        finish=finish,
        step=step,
        prefill=prefill,
        **row,
    )
