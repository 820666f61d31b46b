import json
import math

import pytest

from retool_mcore.metrics.behaviour import behaviour, by_source, histograms, void_turns


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


def turn(programs=0, boxed=False, fakes=()) -> dict:
    return {"programs": programs, "boxed": boxed, "fakes": list(fakes), "generate_s": 0.5, "tool_s": 0.1}


def record(calls=(), tokens=10, observed=0, acc=1.0, finish="answer", turns=1, notes=()) -> dict:
    spans = [("policy", 0, tokens - observed), ("observation", tokens - observed, tokens)]
    return {
        "prompt_ids": [1, 2],
        "response_ids": list(range(tokens)),
        "logprobs": [0.0] * tokens,
        "spans": [{"kind": kind, "start": start, "end": end} for kind, start, end in spans],
        "turn_notes": list(notes),
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


def test_void_turns():
    """A program, run or not, or a box makes a turn count; a malformed call does not."""
    voids = record(notes=[turn(programs=1), turn(), turn(boxed=True), turn()])
    assert void_turns(voids) == [False, True, False, True]
    metrics = behaviour([voids, record(notes=[turn(boxed=True)])])
    assert metrics["void_turn_ratio"] == 2 / 5
    assert metrics["void_response_ratio"] == 1 / 2


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([("x", "error"), ("y", "success")], 1.0),
        ([("x", "timeout"), ("z", "error"), ("y", "success")], 1.0),
        ([("x", "error"), ("x\n", "success")], 0.0),  # the same program: luck, not a correction
        ([("x", "error"), ("y", "error")], 0.0),
        ([("y", "success"), ("x", "error")], 0.0),
        ([("x", "error"), ("y", "sandbox_error")], 0.0),
        ([("x", "success"), ("y", "success")], None),
        ([("x", "sandbox_error"), ("y", "success")], None),
        ([], None),
    ],
)
def test_self_correction(runs, expected):
    assert behaviour([record([call(*run) for run in runs])]).get("self_correction_rate") == expected


def other(status, **arguments):
    return call(code=None, status=status, tool="search", arguments=json.dumps(arguments))


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([other("error", q="a"), other("success", q="b")], 1.0),
        ([other("error", q="a"), other("success", q="a")], 0.0),
        ([other("error", q="a"), call("y", "success")], 1.0),
        ([call("x", "error"), other("success", q="a")], 1.0),
        ([other("error", q="a")], 0.0),
    ],
)
def test_self_correction_by_other_tools(runs, expected):
    assert behaviour([record(runs)])["self_correction_rate"] == expected


def test_the_papers_metrics_are_about_code_alone():
    metrics = behaviour([record([call(status="success"), other("error", q="a"), other("success", q="b")])])
    assert metrics["correct_code_runs"] == 1 and metrics["last_code_pass/correct"] == 1
    assert metrics["tool_success_rate"] == pytest.approx(2 / 3) and metrics["code_lines"] == 1
    assert "last_code_pass/correct" not in behaviour([record([other("success", q="a")])])


def test_the_wait_for_a_slot_is_told_apart_from_the_run():
    ran = record([call(duration_s=0.03)], notes=[turn()])
    assert behaviour([ran, record()])["tool_queued_share"] == pytest.approx((0.1 - 0.03) / 0.2)


def test_tool_time_overlong_and_fakes():
    metrics = behaviour([record(finish="length", notes=[turn(fakes=[3, 7])]), record(finish="turn_length"), record()])
    assert metrics["tool_time_share"] == pytest.approx(0.1 / 1.1)
    assert metrics["overlong_share"] == pytest.approx(1 / 3)
    assert metrics["faked_block_ratio"] == pytest.approx(1 / 3)
    assert metrics["fake_blocks"] == pytest.approx(2 / 3)


def test_sources_and_histograms():
    records = [
        record() | {"data_source": "b"},
        record(tokens=4) | {"data_source": "a"},
        record() | {"data_source": "b"},
    ]
    assert {source: len(own) for source, own in by_source(records).items()} == {"a": 1, "b": 2}
    drawn = histograms(records)
    assert drawn["response_length"] == [10, 4, 10]
    assert "invocation_timing" not in drawn and "tool_latency_s" not in drawn


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
