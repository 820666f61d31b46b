"""A start of a job that ended without a word is told, and counted, by the next one; any other end is not."""

import json
import os
import signal
import subprocess

import pytest
from omegaconf import OmegaConf

from retool_mcore.cluster import crash_marker, guard, job
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.retry import FAILURES
from retool_mcore.config import compose
from retool_mcore.runner.launch import StageFailed, Stopped


@pytest.fixture(scope="module")
def config():
    return compose("sft", ["name=t"])


@pytest.fixture
def start(tmp_path, monkeypatch, config):
    """Runs start `number` (from 0) of job 7, in the place of whose stage `work` is called; its exit code."""
    tmp_path.joinpath("bin").mkdir()
    for name, script in {"scontrol": "echo n1", "srun": "exit 1"}.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(Signals, "watch_parent", lambda self: None)
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    monkeypatch.setattr(job, "configure", lambda *_: OmegaConf.merge(config, {"run_dir": str(tmp_path / "t")}))
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)}

    def run(number: int, work, job_id: int = 7) -> int:
        for name, value in {"SLURM_JOB_ID": job_id, "SLURM_JOB_NODELIST": "n1", "SLURM_RESTART_COUNT": number}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(job, "run_on_nodes", work)
        return job.run("sft", [])

    yield run
    for name, handler in before.items():
        signal.signal(name, handler)


def lose_node(start, tmp_path, number: int) -> str:
    """What running.json says while start `number` works; it stays as it is then, as when the node goes."""
    kept = []
    start(number, lambda *_: kept.append((tmp_path / "t/sft" / crash_marker.FILE).read_text()))
    (tmp_path / "t/sft" / crash_marker.FILE).write_text(kept[0])
    return kept[0]


def test_a_lost_first_node_is_named_by_the_next_start(start, tmp_path, capsys):
    lose_node(start, tmp_path, 0)
    assert start(1, lambda *_: None) == 0
    said = capsys.readouterr().out
    assert "retool: start 1 of this job ended without a word, because its first node, " in said
    assert "sft: to be started again: failure 1 of at most" in said
    (failure,) = map(json.loads, (tmp_path / "t/sft" / FAILURES).read_text().splitlines())
    assert failure["message"].startswith("start 1 of this job")


def test_a_node_that_is_lost_twice_at_one_step_is_the_end(start, tmp_path):
    lose_node(start, tmp_path, 0)
    lose_node(start, tmp_path, 1)
    assert start(2, lambda *_: pytest.fail("started")) == 1
    assert start(3, lambda *_: None) == 0  # released by hand


def test_another_job_is_not_to_blame(start, tmp_path, capsys):
    lose_node(start, tmp_path, 0)
    assert start(0, lambda *_: None, job_id=70) == 0
    assert "without a word" not in capsys.readouterr().out


@pytest.mark.parametrize("end", [None, StageFailed("loss is nan"), signal.SIGTERM])
def test_a_start_that_could_speak_leaves_no_mark(start, tmp_path, end):
    def work(*_):
        assert (tmp_path / "t/sft" / crash_marker.FILE).exists()
        if isinstance(end, Exception):
            raise end
        if end is not None:
            os.kill(os.getpid(), end)

    start(0, work)
    assert crash_marker.unreported_crash(tmp_path / "t/sft", "7") is None


def test_a_signal_to_end_takes_the_mark_away_at_once(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    crash_marker.begin(tmp_path, "7-0", "n1")
    Signals("sft", tmp_path, "7-0")
    try:
        with pytest.raises(Stopped):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert crash_marker.unreported_crash(tmp_path, "7") is None


@pytest.mark.parametrize(("mark", "stays"), [("7-0", False), ("7-1", True)])
def test_the_guard_speaks_for_its_own_start_only(tmp_path, monkeypatch, mark, stays):
    crash_marker.begin(tmp_path, mark, "n1")
    monkeypatch.setattr(guard.slurm, "state", lambda job: None)
    monkeypatch.setattr(guard.slurm, "requeue", lambda job_id: None)
    ended = subprocess.Popen(["true"])
    ended.wait()
    before = signal.getsignal(signal.SIGTERM)
    options = {
        "job": "7",
        "recorded": 0,
        "pid": ended.pid,
        "started": 1,
        "max_attempts": 3,
        "stage": "sft",
        "mark": "7-0",
    }
    options |= {"log": str(tmp_path / "log"), "folder": str(tmp_path), "node": "n1"}
    try:
        assert guard.main(json.dumps(options)) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (crash_marker.unreported_crash(tmp_path, "7") is not None) == stays
