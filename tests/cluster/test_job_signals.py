"""Signals to a job, and the end of its time as Slurm names and changes it."""

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime

import pytest

from retool_mcore.cluster import job_signals, slurm
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.runner.launch import Stopped
from retool_mcore.state import stop

pytestmark = pytest.mark.usefixtures("signal_handlers")


def test_usr1_asks_a_running_trainer_to_stop_at_its_step(tmp_path):
    signals = Signals("rl", tmp_path)
    signals.running = True
    os.kill(os.getpid(), signal.SIGUSR1)
    assert (tmp_path / "STOP").exists()


@pytest.mark.parametrize(("stage", "running"), [("rl", False), ("eval", True)])
def test_usr1_ends_what_cannot_stop_at_a_step(tmp_path, stage, running):
    signals = Signals(stage, tmp_path)
    signals.running = running
    with pytest.raises(Stopped) as stopped:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert stopped.value.signum == signal.SIGUSR1 and not (tmp_path / "STOP").exists()


def test_a_second_term_does_not_disturb_the_end(tmp_path):
    Signals("rl", tmp_path)
    with pytest.raises(Stopped):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def ends_in(program, seconds: float) -> None:
    """Has squeue say that the job's time ends in so many seconds."""
    program("squeue", f"echo {datetime.fromtimestamp(time.time() + seconds).isoformat(timespec='seconds')}")


def test_a_step_that_outlasts_the_jobs_time_is_given_up_at_the_last_call(program, tmp_path, monkeypatch):
    monkeypatch.setenv(stop.JOB_END, "")  # the test's end restores it
    ends_in(program, job_signals.LAST_CALL_S + 3.0)
    signals = Signals("rl", tmp_path)
    signals.running = True
    os.kill(os.getpid(), signal.SIGUSR1)  # Slurm's, earlier
    assert (tmp_path / "STOP").exists()
    signals.watch_end("7", tmp_path / "end")
    with pytest.raises(Stopped) as stopped:
        wait_for_signal()
    assert stopped.value.signum == signal.SIGUSR1


def test_without_an_end_there_is_no_last_call(program, tmp_path, monkeypatch):
    monkeypatch.setenv(stop.JOB_END, "of an earlier start")
    program("squeue", "echo N/A")
    before = threading.active_count()
    Signals("rl", tmp_path).watch_end("7", tmp_path / "end")
    assert threading.active_count() == before and stop.job_end() == float("inf")


def test_a_limit_that_is_extended_lets_the_trainer_go_on(program, tmp_path, monkeypatch, capfd):
    """Admins extend the limit of a run like this one, after it has been warned of the old end."""
    monkeypatch.setenv(stop.JOB_END, "")  # the test's end restores it
    monkeypatch.setattr(job_signals, "ASK_S", 0.1)
    ends_in(program, job_signals.LAST_CALL_S + 600.0)
    signals = Signals("rl", tmp_path)
    signals.running = True
    signals.watch_end("7", tmp_path / "end")
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.requested(tmp_path) and stop.job_end() < time.time() + job_signals.LAST_CALL_S + 601.0
    ends_in(program, 7200.0)
    wait_until(lambda: not stop.requested(tmp_path))
    assert stop.job_end() > time.time() + 7000.0 and not signals.asked
    assert "the job's time now ends +" in capfd.readouterr().out
    stop.request(tmp_path, stop.REQUEST)
    ends_in(program, 10800.0)
    wait_until(lambda: stop.job_end() > time.time() + 10000.0)
    assert stop.requested(tmp_path), "a user's request stays"
    signals.ignore()


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_for_signal() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("squeue", "end"),
    [("echo 2026-11-24T00:00:00", datetime(2026, 11, 24).timestamp()), ("echo N/A", 99.0), ("exit 1", 99.0)],
)
def test_the_end_of_the_jobs_time_is_slurms(program, monkeypatch, squeue, end):
    program("squeue", f'test "$SLURM_TIME_FORMAT" = standard || exit 1; {squeue}')
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "99")
    assert slurm.end_time("7") == end
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert slurm.end_time("7") == (end if end != 99.0 else None)


def test_the_job_notices_that_slurms_process_above_it_is_gone(tmp_path):
    job_process = f"""
import time
from pathlib import Path
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.runner.launch import Stopped
folder = Path({str(tmp_path)!r})
Signals("sft", folder).watch_parent()
try:
    (folder / "up").touch()
    time.sleep(60)
except Stopped as stopped:
    (folder / "signal").write_text(str(stopped.signum))
"""
    above = subprocess.Popen(["bash", "-c", '"$@" & wait', "bash", sys.executable, "-c", job_process])
    deadline = time.monotonic() + 60
    said = tmp_path / "signal"
    while not (said.exists() and said.read_text()):
        assert time.monotonic() < deadline
        if (tmp_path / "up").exists() and above.poll() is None:
            above.kill()
            above.wait()
        time.sleep(0.05)
    assert said.read_text() == str(int(signal.SIGHUP))
