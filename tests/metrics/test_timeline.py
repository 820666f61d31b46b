import json

import pytest

from retool_mcore.metrics.timeline import chrome_trace, shares, write_trace

TIMING = {
    "step": 20.0,
    "gen": 10.0,
    "old_log_prob": 2.0,
    "ref": 1.0,
    "adv": 0.5,
    "update_actor": 4.0,
    "audit": 0.5,
    "update_weights": 1.5,
    "testing": 99.0,  # verl times it outside the step
}


def record(started: float, *turns: tuple[float, float]) -> dict:
    notes = [{"generate_s": generate, "tool_s": tool} for generate, tool in turns]
    sums = {"generate_s": sum(turn[0] for turn in turns), "tool_s": sum(turn[1] for turn in turns)}
    return {"started": started, "turn_notes": notes, "uid": "u", "sample": 0, "finish": "answer", "acc": 1.0} | sums


# Generating from 0 to 3 and from 2 to 4, then from 7 to 8; tools from 3 to 6 and from 4 to 7.
TWO = [record(1000.0, (3.0, 3.0)), record(1002.0, (2.0, 3.0), (1.0, 0.0))]


def test_the_parts_add_up_to_the_step():
    found = shares(TIMING, TWO)
    assert found["timing_share/generation"] == pytest.approx((4 + 1) / 20)
    assert found["timing_share/tools"] == pytest.approx(3 / 20)
    assert found["timing_share/rollout_rest"] == pytest.approx(2 / 20)
    assert found["timing_share/log_probs"] == pytest.approx(3 / 20)
    assert found["timing_share/update"] == pytest.approx(3.5 / 20)
    assert found["timing_share/audit"] == pytest.approx(0.5 / 20)
    assert found["timing_share/weight_push"] == pytest.approx(1.5 / 20)
    assert found["timing_share/other"] == pytest.approx(1 / 20)
    assert found.pop("timing_share/engine_waits") == pytest.approx(1 - (3 + 3) / (2 * 10))
    # All but generation (5), log-probabilities (3), update without its audit (3.5) and weight push (1.5).
    assert found.pop("timing_share/no_gpu_work") == pytest.approx(7 / 20)
    assert sum(found.values()) == pytest.approx(1)


def test_what_an_earlier_attempt_had_finished_took_none_of_the_step():
    old = record(1.0, (500.0, 3.0)) | {"taken_over": True}
    assert shares(TIMING, [*TWO, old]) == shares(TIMING, TWO)
    assert chrome_trace(7, 1000.0, TIMING, [old, *TWO]) == chrome_trace(7, 1000.0, TIMING, TWO)


def test_without_trajectories_or_a_step():
    assert shares({}, TWO) == {}
    found = shares(TIMING, [])
    assert found["timing_share/rollout_rest"] == 0.5 and found["timing_share/generation"] == 0


def test_clocks_that_disagree_give_no_negative_share():
    assert min(shares(TIMING | {"gen": 3.0}, TWO).values()) >= 0


def test_the_trace_places_phases_and_turns():
    trace = chrome_trace(7, 1000.0, TIMING, TWO)
    events = {(e["pid"], e["tid"], e["name"], e["ts"]): e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"}
    assert events[0, 0, "gen", 0] == 10_000_000
    assert events[0, 0, "ref", 12_000_000] == 1_000_000
    assert events[0, 0, "audit", 13_500_000] == 500_000
    assert events[0, 0, "update_actor", 13_500_000] == 4_000_000
    assert events[1, 0, "tool", 3_000_000] == 3_000_000
    assert events[1, 1, "generate", 7_000_000] == 1_000_000
    assert "testing" not in {name for _, _, name, _ in events}


def test_a_wait_for_tools_is_told_apart_from_the_programs_in_it():
    calls = [{"turn": 0, "duration_s": 1.0}, {"turn": 0, "duration_s": 0.5}, {"turn": 1, "duration_s": None}]
    trace = chrome_trace(1, 1000.0, TIMING, [record(1000.0, (3.0, 4.0), (1.0, 0.0)) | {"calls": calls}])
    drawn = [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1]
    assert drawn[:3] == [("generate", 0, 3_000_000), ("queued", 3_000_000, 2_500_000), ("tool", 5_500_000, 1_500_000)]
    assert drawn[3] == ("generate", 7_000_000, 1_000_000)


def test_the_longest_trajectories_are_shown():
    many = [record(1000.0, (n + 1.0, 0.0)) for n in range(300)]
    trace = chrome_trace(1, 1000.0, TIMING, many)
    drawn = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == 1 and e["name"] == "generate"]
    assert len(drawn) == 200 and min(e["dur"] for e in drawn) == 101_000_000
    assert trace["otherData"] == {"step": 1, "started": 1000.0, "trajectories": 300, "shown": 200}


def test_old_traces_leave(tmp_path):
    for step in (9, 10, 11):
        path = write_trace(tmp_path / "trace", step, chrome_trace(step, 1000.0, TIMING, TWO), keep=2)
    assert sorted(p.name for p in path.parent.iterdir()) == ["step_000010.json", "step_000011.json"]
    assert json.loads(path.read_text())["otherData"]["step"] == 11
