"""A stage that hangs is noticed, its stacks are kept, and it is ended; one that stopped on request is told apart."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from retool_mcore.cli import main, stages
from retool_mcore.runner import launch as launching
from retool_mcore.runner import watchdog
from retool_mcore.runner.launch import Paused, StageFailed, run_attempt
from retool_mcore.runner.processes import Process
from retool_mcore.runner.watchdog import DeadWorker, Watchdog, dump_stacks
from retool_mcore.state import heartbeat, stop

PATIENCE_S = 60.0
PYTHON = sys.executable
HANG = "import time\ndef waits_for_ever():\n    print('in place', flush=True)\n    time.sleep(600)\nwaits_for_ever()"
LIMIT_MINUTES = 0.06
# Talks for longer than the watchdog's limit.
TALK = "import time\nfor _ in range(10):\n    print('busy', flush=True)\n    time.sleep(0.5)"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a Python program as the stage "probe" of a run in tmp_path under a watchdog; returns the stage's folder."""

    def start(program: str, minutes: float | None, **more) -> Path:
        config = {"run_dir": str(tmp_path), "parallel": {"device": "cpu", "nodes": 1}, "watchdog_minutes": minutes}
        monkeypatch.setattr(launching, "stage_command", lambda *_: [sys.executable, "-c", program])
        monkeypatch.setattr(launching, "LOOK_S", 0.5)
        run_attempt("probe", OmegaConf.create(config), **more)
        return tmp_path / "probe"

    return start


@pytest.fixture
def child():
    """Starts a process that waits in a function of its own; returns it once it is there."""
    started = []

    def start() -> subprocess.Popen:
        started.append(subprocess.Popen([PYTHON, "-c", HANG], stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"in place\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_growth_of_any_file_is_life(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock[0])
    log, metrics = tmp_path / "log.txt", tmp_path / "metrics.jsonl"
    dog = Watchdog([log, metrics], limit_s=50.0)

    def after(seconds: float) -> bool:
        clock[0] += seconds
        return dog.hangs()

    assert not after(20) and not after(20)
    log.write_text("line\n")  # the first growth is the file itself
    assert not after(20) and not after(20)
    metrics.write_text("{}\n")
    assert not after(20) and not after(20) and not after(20) and not after(9)
    assert after(1)


def test_time_in_which_nobody_looked_counts_little(tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock[0])
    dog = Watchdog([tmp_path / "log.txt"], limit_s=50.0)
    clock[0] += 9999.0
    assert not dog.hangs()
    clock[0] += 30.0
    assert dog.hangs()


def can_trace(pid: int) -> bool:
    """Whether py-spy may look into a process here; containers and Ubuntu's ptrace_scope may forbid it."""
    command = [Path(sys.executable).with_name("py-spy"), "dump", "--pid", str(pid)]
    return subprocess.run(command, capture_output=True, timeout=PATIENCE_S).returncode == 0


def test_stacks_or_why_there_are_none(child, tmp_path):
    processes = [child(), child()]
    dump_stacks([Process(process.pid, 0) for process in processes] + [Process(2**22 + 1, 0)], tmp_path / "stacks")
    for process in processes:
        text = (tmp_path / "stacks" / f"{process.pid}.txt").read_text()
        assert "State:" in text and sys.executable in text
        assert ("waits_for_ever" in text.partition("State:")[2]) if can_trace(process.pid) else ("no stacks: " in text)
    assert "no stacks: " in (tmp_path / "stacks" / f"{2**22 + 1}.txt").read_text()


def test_a_process_that_py_spy_may_not_look_into_is_asked_for_its_stacks(child, tmp_path, monkeypatch):
    """And one that does not listen for it, which the signal would end, is left alone."""
    refusing = tmp_path / "bin" / "py-spy"
    refusing.parent.mkdir()
    refusing.write_text("#!/bin/sh\necho Permission denied >&2; exit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(watchdog.sys, "executable", str(refusing))
    listen = "import faulthandler, signal; faulthandler.register(signal.SIGUSR2, file=2)\n"
    with (tmp_path / "log.txt").open("wb") as log:
        listener = subprocess.Popen([PYTHON, "-c", listen + HANG], stdout=subprocess.PIPE, stderr=log)
    try:
        assert listener.stdout.readline() == b"in place\n"
        deaf = child()
        dump_stacks([Process(listener.pid, 0), Process(deaf.pid, 0)], tmp_path / "stacks")
        deadline = time.monotonic() + PATIENCE_S
        while "waits_for_ever" not in (tmp_path / "log.txt").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        told = {pid: (tmp_path / "stacks" / f"{pid}.txt").read_text() for pid in (listener.pid, deaf.pid)}
        assert all("no stacks: Permission denied" in text for text in told.values())
        assert "in its own output" in told[listener.pid] and "in its own output" not in told[deaf.pid]
        assert listener.poll() is None and deaf.poll() is None
    finally:
        listener.kill()
        listener.communicate()


def test_a_stage_that_hangs_is_ended_and_its_stacks_kept(run, tmp_path):
    with pytest.raises(StageFailed, match=r"phase start stood still for 0\.0[6-9]\d* minutes") as error:
        run(HANG, minutes=LIMIT_MINUTES, dump_others=lambda folder: (folder / "n2").mkdir())
    (stacks,) = (tmp_path / "probe/stacks/attempt_001").glob("*.txt")
    assert (stacks.parent / "n2").is_dir()
    assert str(stacks.parent) in str(error.value)
    assert not Path(f"/proc/{stacks.stem}").exists()


def test_a_stage_that_talks_or_has_no_watchdog_goes_on(run):
    start = time.monotonic()
    run(TALK, minutes=LIMIT_MINUTES)
    assert time.monotonic() - start > 60 * LIMIT_MINUTES
    run("import time; time.sleep(1)", minutes=None)


@pytest.mark.parametrize("code", [0, stop.EXIT_CODE], ids=["torchrun's", "rl's"])
def test_a_stage_that_stopped_on_request_is_neither_complete_nor_failed(run, tmp_path, code):
    folder = tmp_path / "probe"
    folder.mkdir()
    (folder / "STOP").touch()  # left by an attempt that could not honour it
    program = (
        "import sys; from pathlib import Path; from retool_mcore.state import stop; "
        f"folder = Path({str(folder)!r}); assert not stop.requested(folder); stop.honour(folder, 7); sys.exit({code})"
    )
    with pytest.raises(Paused) as paused:
        run(program, minutes=10)
    assert str(paused.value) == "probe: stopped at step 7, start it again to go on" and paused.value.step == 7
    assert not (folder / "COMPLETE").exists()
    assert json.loads((folder / "attempts.jsonl").read_text())["outcome"] == "stopped"
    run("pass", minutes=10)
    assert (folder / "COMPLETE").exists() and stop.stopped_after(folder) is None


def test_exit_code_75_alone_is_a_failure(run):
    with pytest.raises(StageFailed, match="exit code 75"):
        run("raise SystemExit(75)", minutes=10)


def test_the_command_line_says_so_and_exits_with_75(monkeypatch, capsys):
    def launch(stage, config):
        raise Paused(stage, 12)

    monkeypatch.setattr(stages, "launch", launch)
    assert main.main(["sft"]) == 75
    assert capsys.readouterr().out == "sft: stopped at step 12, start it again to go on\n"


def test_a_stage_that_waits_for_a_dead_worker_of_ray_is_told(tmp_path):
    log = tmp_path / "log.txt"
    line = (
        "A worker died or was killed while idle. Worker IP address: {} Worker port: 9 Worker PID: 7 Worker exit type: "
    )
    log.write_text(line.format("10.0.0.1") + "SYSTEM_ERROR x\n")  # of an earlier attempt
    worker = DeadWorker(log, patience_s=0.0)
    assert worker.found() == ""
    with log.open("a") as file:
        file.write("(Actor pid=7, ip=10.0.0.2) hello\n" + line.format("10.0.0.2")[:40])
    assert worker.found() == ""  # half a line
    with log.open("a") as file:
        file.write(line.format("10.0.0.2")[40:] + "SYSTEM_ERROR x\n")
    assert worker.found() == "Ray's Actor on 10.0.0.2 (pid 7) was killed or crashed"
    worker.patience_s = 600.0
    assert worker.found() == ""


@pytest.mark.parametrize("name", ["RolloutWorker", "JudgeActor"])
def test_a_worker_that_the_stage_replaces_is_none(tmp_path, name):
    log = tmp_path / "log.txt"
    line = (
        "A worker died or was killed while executing a task. Worker IP address: 10.0.0.2 Worker port: 9 "
        "Worker PID: {} Worker exit type: SYSTEM_ERROR x\n"
    )
    log.write_text("")
    worker = DeadWorker(log, patience_s=0.0)
    with log.open("a") as file:
        file.write(f"({name} pid=7, ip=10.0.0.2) it is there\n(WorkerDict pid=8, ip=10.0.0.2) hello\n" + line.format(7))
    assert worker.found() == worker.found() == ""
    with log.open("a") as file:
        file.write(line.format(8))
    assert worker.found() == "Ray's WorkerDict on 10.0.0.2 (pid 8) was killed or crashed"


def resumed(tmp_path, monkeypatch, silences: dict, limit_s: float = 1800.0):
    """A watchdog of a stage that starts again, and a function that lets seconds pass and looks as often as it does."""
    clock = [100.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: clock[0])
    (tmp_path / "silences.json").write_text(json.dumps(silences))
    heartbeat.prepare(tmp_path)
    dog = Watchdog([tmp_path / "log.txt"], limit_s, tmp_path)

    def after(seconds: float) -> bool:
        for _ in range(round(seconds / 10)):
            clock[0] += 10.0
            if dog.hangs():
                return True
        return False

    return dog, after


def beat(tmp_path, name: str, phase: str, beats: int) -> None:
    record = {"phase": phase, "beats": beats, "time": time.time()}
    (tmp_path / "heartbeat" / f"{name}.json").write_text(json.dumps(record))


def test_a_start_that_reads_a_checkpoint_has_the_whole_time(tmp_path, monkeypatch):
    """The first start has none to read: its silence says nothing about a later one."""
    dog, after = resumed(tmp_path, monkeypatch, {"start": 300.0})
    assert not after(1200) and dog.phase == heartbeat.START
    assert after(600), "and no longer than that"


def test_a_load_is_a_phase_that_lives_as_long_as_a_rank_reads(tmp_path, monkeypatch):
    dog, after = resumed(tmp_path, monkeypatch, {"start": 300.0, "load": 5.0})
    beat(tmp_path, "trainer", heartbeat.LOAD, 1)
    assert not after(1200) and dog.phase == heartbeat.LOAD, "one rank may wait for another's file"
    for count in range(12):
        beat(tmp_path, "load-3", heartbeat.LOAD, count)
        assert not after(600)
    assert after(3 * 1200 + 10), "no rank reads any more"


def test_other_phases_keep_their_own_limits(tmp_path, monkeypatch):
    _, after = resumed(tmp_path, monkeypatch, {"update": 100.0})
    beat(tmp_path, "trainer", heartbeat.UPDATE, 1)
    assert not after(890) and after(30)
