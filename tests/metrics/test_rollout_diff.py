import pytest

from retool_mcore.metrics.rollout_diff import compare

RECORD = {
    "response_ids": [3, 4, 5, 6],
    "spans": [
        {"kind": "policy", "start": 0, "end": 2},
        {"kind": "observation", "start": 2, "end": 3},
        {"kind": "policy", "start": 3, "end": 4},
    ],
    "calls": [{}],
    "tool_s": 1.0,
    "generate_s": 2.0,
}


def test_what_came_out_of_the_engine_is_counted_token_by_token():
    other = RECORD | {"response_ids": [3, 4, 9, 6]}
    found = compare([RECORD, RECORD], [RECORD, other], seconds=2.0)
    assert (found["trajectories"], found["same"], found["same_prefix"]) == (2, 1, 0.75)
    assert found["policy_tokens"] == 6 and found["policy_tokens_per_second"] == pytest.approx(3.0)
    assert found["tool_s"] == 1.0 and found["calls"] == 2
