"""The chain of a stage's starts, from recorded run folders."""

import json

import pytest
from made_chain import BEGIN, HOUR, at, began, ended, make_chain, record

from retool_mcore.state import chain


@pytest.fixture
def long_run(tmp_path):
    return make_chain(tmp_path / "rl")


def test_each_start_says_what_it_did_and_why_it_ended(long_run):
    found = chain.read(long_run, total=10, now_s=BEGIN + 12.5 * HOUR)
    assert [(start.job, start.number, start.steps, start.why) for start in found.starts] == [
        ("7", 1, (1, 4), chain.TIME_LIMIT),
        ("7", 2, (5, 6), chain.FAULT),
        ("7", 3, None, chain.FAULT),
        ("7", 4, (5, 7), ""),
    ]
    assert found.starts[1].text == "rl failed: NCCL error" and found.starts[3].nodes == ["n1", "n3"]


def test_lost_is_the_time_of_a_broken_start_but_for_kept_steps_and_the_wait_behind_it(long_run):
    """Steps 5 and 6 are done again: three hours and the half that it waited; then the unfit node's 0.1 and 0.4."""
    assert chain.read(long_run).lost_s == {chain.FAULT: pytest.approx((3.5 + 0.5) * HOUR)}


def test_the_next_save_the_nodes_left_out_and_the_end_are_forecast(long_run):
    now = BEGIN + 14 * HOUR
    found = chain.read(long_run, total=10, now_s=now)
    assert found.next_save == BEGIN + 13 * HOUR and found.avoided == ["n2"]
    # 7 steps of an hour are kept of 14 hours: the 3 that are left take twice their own time.
    assert found.complete_at == pytest.approx(now + 6 * HOUR)
    assert chain.read(long_run, total=None, now_s=now).complete_at is None


def test_another_job_has_its_own_nodes_to_keep_off(long_run):
    chain.begin(long_run, "9-0", ["n1", "n2"])
    found = chain.read(long_run)
    assert found.avoided == [] and found.starts[-1].job == "9" and found.starts[-2].why == chain.FAULT


@pytest.mark.parametrize("attempt", [3, 4])
def test_a_second_submission_that_was_refused_changes_nothing_but_the_list(long_run, attempt):
    """attempt: it came before or after the first job's own attempt had begun."""
    before = chain.read(long_run, total=10, now_s=BEGIN + 14 * HOUR)
    lines = [began("8-0", 9.5, attempt), ended("8-0", 9.6, chain.OTHER_JOB, "rl of this run is at work in job 7")]
    with (long_run / chain.FILE).open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    found = chain.read(long_run, total=10, now_s=BEGIN + 14 * HOUR)
    assert found.starts[:4] == before.starts and found.starts[4].why == chain.OTHER_JOB
    assert found.starts[4].steps is None
    assert (found.lost_s, found.avoided, found.next_save) == (before.lost_s, ["n2"], before.next_save)
    assert found.complete_at == before.complete_at


def test_a_start_that_could_not_speak_ended_when_the_next_began(tmp_path):
    folder = record(tmp_path / "rl", [began("7-0", 0, 1), began("7-1", 3, 2)], steps=[(1, 2), (3, 3)])
    first, second = chain.read(folder).starts
    assert (first.why, first.text, first.ended) == (chain.FAULT, "it ended without a word", BEGIN + 3 * HOUR)
    assert second.why == "" and chain.read(folder).lost_s == {chain.FAULT: HOUR}


def test_preemption_is_counted_apart(tmp_path):
    starts = [began("25_1-0", 0, 1), ended("25_1-0", 2, chain.PREEMPTION), began("25_1-1", 3, 2)]
    found = chain.read(record(tmp_path / "rl", starts, steps=[(1, 1)]))
    assert found.lost_s == {chain.PREEMPTION: 2 * HOUR} and found.starts[0].job == "25_1"


def test_without_slurm_the_attempts_are_the_chain(tmp_path):
    attempts = [
        {"attempt": 1, "started": at(0), "seconds": 2 * HOUR, "outcome": "failed"},
        {"attempt": 2, "started": at(3), "seconds": HOUR, "outcome": "complete"},
    ]
    found = chain.read(record(tmp_path / "rl", [], attempts, steps=[(1, 1), (2, 2)]), total=2)
    assert [(start.job, start.number, start.why, start.steps) for start in found.starts] == [
        ("", 1, chain.FAULT, (1, 1)),
        ("", 2, chain.COMPLETE, (2, 2)),
    ]
    assert found.lost_s == {chain.FAULT: 2 * HOUR} and found.complete_at is None


def test_what_is_written_is_what_is_read_and_half_a_line_does_not_count(tmp_path):
    chain.begin(tmp_path, "7-0", ["n1"])
    chain.end(tmp_path, "7-0", chain.FAULT, "\nrl failed: x\nThe whole log: y")
    with (tmp_path / chain.FILE).open("a") as file:
        file.write('{"start": "7-1", "no')
    (start,) = chain.read(tmp_path).starts
    assert (start.nodes, start.why, start.text) == (["n1"], chain.FAULT, "rl failed: x")
    assert start.began <= start.ended


def test_a_stage_that_never_began_has_no_starts(tmp_path):
    assert chain.read(tmp_path / "rl").starts == []
