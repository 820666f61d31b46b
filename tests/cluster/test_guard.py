"""The guard of a job's own process: what it does when that is killed, and that it leaves an orderly end alone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from retool_mcore.cluster import crash_marker
from retool_mcore.cluster.guard import KILLED, guarded, watch
from retool_mcore.cluster.retry import recorded_bytes
from retool_mcore.runner import processes

PATIENCE_S = 60.0


@pytest.fixture
def scontrol(tmp_path, monkeypatch) -> Path:
    """A stand-in for Slurm's command, which writes down how it was called."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "scontrol"
    program.write_text(f"#!/bin/sh\n[ $1 != requeue ] || echo $* >> {tmp_path}/said\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    return tmp_path / "said"


@pytest.fixture
def job():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_process_that_is_gone_is_told_from_an_orderly_end(job):
    asked = threading.Event()
    asked.set()
    process = processes.read(job.pid)
    assert watch(process, asked) is False
    asked.clear()
    threading.Timer(0.5, job.kill).start()
    assert watch(process, asked) is True


def guard(job: subprocess.Popen, folder: Path):
    return guarded(
        lambda options, command: command,
        job="7",
        recorded=recorded_bytes(folder / "sft"),
        pid=job.pid,
        stage="sft",
        folder=folder / "sft",
        mark="7-0-test-guard",
        max_attempts=3,
        node="n1",
        log=str(folder / "log"),
    )


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_job_goes_back_into_the_queue_but_not_for_ever(job, scontrol, tmp_path):
    log = tmp_path / "log"
    with guard(job, tmp_path):
        job.kill()
        wait_for(log.exists)
    assert scontrol.read_text() == "requeue 7\n"
    assert log.read_text().startswith(f"retool: {KILLED}\nsft: to be started again")
    assert "job 7 is back in the queue." in log.read_text()
    (failure,) = [json.loads(line) for line in (tmp_path / "sft/failures.jsonl").read_text().splitlines()]
    assert failure["message"] == KILLED and failure["step"] == 0


@pytest.mark.parametrize(("state", "requeued"), [("TimeLimit", True), ("None", False)], ids=["limit", "scancel"])
def test_at_the_time_limit_the_job_goes_back_at_once(job, scontrol, tmp_path, state, requeued):
    for program, script in (("squeue", f"echo '7|COMPLETING|{state}'"),):
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    with guard(job, tmp_path):
        wait_for(lambda: catches_term("7-0-test-guard"))
    assert scontrol.exists() == requeued
    assert not (tmp_path / "sft").exists()


def test_at_the_time_limit_the_guard_says_so_before_the_jobs_own_process_is_killed(job, scontrol, tmp_path):
    """Slurm kills that one while it ends its stage. The next start would tell of a lost node, and count a failure."""
    for program, script in (("squeue", "echo '7|COMPLETING|TimeLimit'"),):
        (tmp_path / "bin" / program).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    folder = tmp_path / "sft"
    (folder / "metrics").mkdir(parents=True)
    requeued = []
    for number, steps in enumerate(('{"step": 1, "data": {"x": 1}}\n', "", ""), start=1):
        crash_marker.begin(folder, "7-0-test-guard", "n1")
        with guard(job, tmp_path):
            wait_for(lambda: catches_term("7-0-test-guard"))
            (folder / f"metrics/attempt_{number:03d}.jsonl").write_text(steps)
        assert not (folder / crash_marker.FILE).exists()
        requeued.append(scontrol.exists())
        scontrol.unlink(missing_ok=True)
    assert requeued == [True, True, False]  # the limit is too short for a single step
    assert len((folder / "failures.jsonl").read_text().splitlines()) == 2


def catches_term(mark: str) -> bool:
    """Whether a guard of that mark has set its handler of SIGTERM."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f'"mark": "{mark}"'.encode() in (entry / "cmdline").read_bytes():
                caught = next(line for line in (entry / "status").read_text().splitlines() if line.startswith("SigCgt"))
                return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def test_the_end_of_the_body_is_the_end_of_the_guard(job, scontrol, tmp_path):
    with guard(job, tmp_path):
        pass
    job.kill()
    assert not scontrol.exists() and not (tmp_path / "log").exists()
