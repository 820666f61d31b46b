import math

import pytest

from retool_mcore.metrics.behaviour import behaviour


def call(code="print(1)", status="success", start=0, **changes) -> dict:
    return {
        "code": code,
        "malformed": False,
        "status": status,
        "stdout": "1\n",
        "stderr": "",
        "value": None,
        "duration_s": 0.1,
        "turn": 0,
        "start": start,
        "truncated": False,
    } | changes


def record(calls=(), tokens=10, observed=0, acc=1.0, finish="answer", turns=1) -> dict:
    return {
        "prompt_ids": [1, 2],
        "response_ids": list(range(tokens)),
        "response_mask": [1] * (tokens - observed) + [0] * observed,
        "logprobs": [0.0] * tokens,
        "spans": [],
        "calls": list(calls),
        "turns": turns,
        "finish": finish,
        "generate_s": 1.0,
        "tool_s": 0.1,
        "score": 2 * acc - 1,
        "acc": acc,
        "data_source": "test",
    }


def test_the_six_metrics_of_the_paper():
    metrics = behaviour(
        [
            # right answer: an error, then a success; blocks start at a tenth and at half of the response
            record([call("a = 1\n\nb\n", "error", start=2), call("print(1)", start=10)], tokens=20, turns=3),
            # wrong answer whose last run failed, though an earlier one passed
            record([call("x\ny\nz", start=4), call("w", "timeout", start=4)], tokens=8, acc=0.0, turns=3),
            record(tokens=2),
            record(tokens=2, acc=0.0),
        ]
    )
    assert metrics["response_length"] == 8
    assert metrics["code_ratio"] == 0.5
    assert metrics["code_lines"] == (2 + 1 + 3 + 1) / 4
    assert metrics["correct_code_runs"] == 2
    assert metrics["last_code_pass/correct"] == 1
    assert metrics["last_code_pass/incorrect"] == 0
    assert metrics["invocation_timing"] == pytest.approx((0.1 + 0.5 + 0.5 + 0.5) / 4)


def test_the_tools_health():
    calls = [call(duration_s=0.1 * n, truncated=n == 1) for n in range(1, 21)]
    metrics = behaviour([record(calls, tokens=100, observed=60, turns=21), record(finish="length")])
    assert metrics["policy_tokens"] == (40 + 10) / 2
    assert metrics["turns"] == 11
    assert metrics["calls"] == 10
    assert metrics["tool_success_rate"] == 1
    assert metrics["tool_latency_s/mean"] == pytest.approx(1.05)
    assert metrics["tool_latency_s/p95"] == pytest.approx(1.905)
    assert metrics["truncated_observation_share"] == 1 / 20
    assert metrics["finish/answer"] == metrics["finish/length"] == 0.5
    assert metrics["finish/overflow"] == 0


def test_a_malformed_call_is_neither_code_nor_a_run():
    malformed = call(code=None, malformed=True, status="error", duration_s=99.0)
    metrics = behaviour([record([call(), malformed])])
    assert metrics["malformed_call_share"] == 0.5
    assert metrics["tool_success_rate"] == 1
    assert metrics["last_code_pass/correct"] == 1
    assert metrics["tool_latency_s/mean"] == pytest.approx(0.1)
    assert behaviour([record([malformed])])["code_ratio"] == 0


def test_a_failure_of_the_sandbox_is_not_the_policys():
    metrics = behaviour([record([call(), call(status="sandbox_error", duration_s=99.0)])])
    assert metrics["sandbox_error_share"] == 0.5
    assert metrics["tool_success_rate"] == 1
    assert metrics["last_code_pass/correct"] == 1
    assert metrics["code_ratio"] == 1


def test_empty_denominators_are_left_out():
    assert behaviour([]) == {}
    metrics = behaviour([record(tokens=0)])
    missing = {"invocation_timing", "last_code_pass/correct", "last_code_pass/incorrect", "tool_success_rate"}
    missing |= {"tool_latency_s/mean", "tool_latency_s/p95", "malformed_call_share", "truncated_observation_share"}
    assert not missing & metrics.keys()
    assert metrics["correct_code_runs"] == 0
    assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())


def test_finish_shares_sum_to_one_even_with_an_unknown_reason():
    metrics = behaviour([record(finish="answer"), record(finish="new_reason"), record(finish="max_turns")])
    shares = {name: value for name, value in metrics.items() if name.startswith("finish/")}
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["finish/new_reason"] == pytest.approx(1 / 3)
