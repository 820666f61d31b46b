"""The clock of a trainer's saves."""

import pytest

from retool_mcore.state import heartbeat, schedule, stop
from retool_mcore.state.schedule import Schedule


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(schedule.time, "time", lambda: now[0])
    return now


def after(clock, minutes: float) -> None:
    clock[0] += 60 * minutes


def test_a_save_is_due_when_the_minutes_have_passed_since_the_last_one(clock):
    one = Schedule(60, 30)
    after(clock, 59)
    assert not one.due()
    after(clock, 1)
    assert one.due()
    one.save_ended(10.0)
    assert not one.due()
    after(clock, 60)
    assert one.due()


def test_a_save_that_takes_long_comes_less_often(clock):
    one = Schedule(60, 30)
    one.save_ended(600.0)  # 10 minutes are 5 % of 200
    after(clock, 199)
    assert not one.due()
    after(clock, 1)
    assert one.due()


@pytest.mark.parametrize(("minutes", "every"), [(None, 30), (60, -1)])
def test_nothing_is_due_without_the_minutes_or_where_nothing_is_saved(clock, minutes, every):
    one = Schedule(minutes, every)
    after(clock, 10_000)
    assert not one.due()
    one.begin_step(1)
    assert one.next_save(1) is None


def test_the_next_save_is_the_clocks_or_the_step_that_is_saved_anyway(clock, tmp_path, monkeypatch):
    monkeypatch.setattr(heartbeat, "_writers", {})
    monkeypatch.setenv(heartbeat.VARIABLE, str(heartbeat.prepare(tmp_path)))
    one = Schedule(60, 4)
    one.begin_step(5, parts=8)
    assert one.next_save(5) == 1000 + 3600  # a step has no measured length yet
    after(clock, 12)
    one.save_ended(120.0)  # inside of the step, and not its own time
    one.begin_step(6)
    assert one.next_save(6) == clock[0] + 3 * 600  # 6, 7 and 8
    assert one.next_save(8) == clock[0] + 600
    told = heartbeat.read(tmp_path)["trainer"]
    assert (told["next_save"], told["parts"]) == (clock[0] + 1800, 8)


def test_another_step_fits_when_the_longest_of_the_last_and_its_save_do(clock, monkeypatch, tmp_path):
    one = Schedule(60, 30)
    one.begin_step(1)
    for step, minutes in ((2, 30), (3, 20), (4, 20)):
        after(clock, minutes)
        one.begin_step(step)
    after(clock, 20)
    one.save_ended(240.0)
    needed = 1.25 * 30 * 60 + 1.5 * 240 + schedule.END_S
    monkeypatch.setenv(stop.JOB_END, str(tmp_path / "end"))
    stop.write_job_end(tmp_path / "end", clock[0] + needed + 1)
    assert one.another_fits()
    stop.write_job_end(tmp_path / "end", clock[0] + needed - 1)
    assert not one.another_fits()
    monkeypatch.delenv(stop.JOB_END)
    assert one.another_fits()
