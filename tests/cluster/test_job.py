"""The job on the batch host, with small programs in the place of Slurm's commands; whole jobs: test_slurm_stages.py."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from retool_mcore.cluster import crash_marker, job, job_signals, slurm
from retool_mcore.cluster.job import (
    Allocation,
    back_to_queue,
    configure,
    interrupt_at_fault,
    run_attempt_on_nodes,
)
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.node import node_mark
from retool_mcore.cluster.ray_cluster import ClusterFailed, RayCluster
from retool_mcore.cluster.site import Site
from retool_mcore.runner import processes
from retool_mcore.runner.launch import AlarmStop, StageFailed, Stopped, WentBack
from retool_mcore.state import stop

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

ONE = Allocation(7, 0, ("n1",), 8)
TWO = Allocation(7, 1, ("n1", "n2"), 8)


@pytest.fixture(autouse=True)
def handlers():
    """A test's signal handlers are its own."""
    signums = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    before = {signum: signal.getsignal(signum) for signum in signums}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


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


def test_a_step_that_outlasts_the_jobs_time_is_given_up_at_the_last_call(tmp_path, monkeypatch):
    monkeypatch.setenv(stop.JOB_END, str(time.time() + job_signals.LAST_CALL_S + 3.0))
    signals = Signals("rl", tmp_path)
    signals.running = True
    os.kill(os.getpid(), signal.SIGUSR1)  # Slurm's, earlier
    assert (tmp_path / "STOP").exists()
    signals.watch_end()
    with pytest.raises(Stopped) as stopped:
        wait_for_signal()
    assert stopped.value.signum == signal.SIGUSR1


def test_without_an_end_there_is_no_last_call(tmp_path, monkeypatch):
    monkeypatch.delenv(stop.JOB_END, raising=False)
    before = threading.active_count()
    Signals("rl", tmp_path).watch_end()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("squeue", "end"),
    [("echo 2026-11-24T00:00:00", datetime(2026, 11, 24).timestamp()), ("echo N/A", 99.0), ("exit 1", 99.0)],
)
def test_the_end_of_the_jobs_time_is_slurms(program, monkeypatch, squeue, end):
    program("squeue", f'test "$SLURM_TIME_FORMAT" = standard || exit 1; {squeue}')
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "99")
    assert slurm.end_time(7) == end
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert slurm.end_time(7) == (end if end != 99.0 else None)


LIMIT, SCANCEL, GUARDED = "COMPLETING|TimeLimit", "COMPLETING|None", "PENDING|BeginTime"


@pytest.fixture
def ended(program, tmp_path, monkeypatch):
    """Runs an attempt that ends with a signal while Slurm says of the job what is given; (exit code, requeued)."""
    program("scontrol", f"echo $* >> {tmp_path}/said")
    program("sacct", "exit 1")
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    folder = tmp_path / "rl"
    (folder / "metrics").mkdir(parents=True)

    def run(signum: int, state: str, steps: str = '{"step": 1, "data": {"x": 1}}\n', restart: int = 0, judged=False):
        if not judged:
            crash_marker.begin(folder, f"7-{restart}", "n1")
        program("squeue", f"echo '7|{state}'")
        (folder / "metrics" / f"attempt_{restart + 1:03d}.jsonl").write_text(steps)
        (tmp_path / "said").unlink(missing_ok=True)
        signals = Signals("rl", folder)
        signals.running = True

        def stopped(*_):
            raise Stopped(signum)

        monkeypatch.setattr(job, "run_on_nodes", stopped)
        code = run_attempt_on_nodes("rl", None, TWO, Site("default"), signals, folder)
        return code, (tmp_path / "said").exists()

    return run


@pytest.mark.parametrize(
    ("signum", "state", "end"),
    [
        (signal.SIGTERM, LIMIT, (0, True)),
        (signal.SIGTERM, GUARDED, (0, True)),
        (signal.SIGTERM, SCANCEL, (143, False)),
        (signal.SIGUSR1, "RUNNING|None", (0, True)),
    ],
)
def test_the_time_limit_leads_back_to_the_queue_and_scancel_does_not(ended, signum, state, end):
    assert ended(signum, state) == end


def test_a_limit_too_short_for_a_single_step_does_not_burn_starts_for_ever(ended, tmp_path, capsys):
    assert ended(signal.SIGUSR1, "RUNNING|None", steps="") == (0, True)
    assert ended(signal.SIGUSR1, "RUNNING|None", steps="", restart=1) == (1, False)
    assert "time was over before a single step ended: give it a longer time limit" in capsys.readouterr().out
    assert len([json.loads(line) for line in (tmp_path / "rl/failures.jsonl").read_text().splitlines()]) == 2


def test_what_the_guard_has_judged_at_the_time_limit_is_not_judged_again(ended):
    """It has put the job back, or has not since no step ended; a second judgement would count a second failure."""
    assert ended(signal.SIGTERM, GUARDED, steps="", judged=True) == (75, False)


def part(*command: str) -> subprocess.Popen:
    return subprocess.Popen(command)


def wait_for_signal() -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_broken_cluster_ends_the_stage_with_its_cause(tmp_path):
    Signals("rl", tmp_path)
    log = tmp_path / "ray.log"
    log.write_text("srun: error: n2: task 0: Killed\n")
    cluster = RayCluster("a:1", log, ["n1", "n2"], {}, {"step on the other nodes": part("false")})
    with (
        pytest.raises(ClusterFailed, match=r"Ray's step on the other nodes ended \(exit code 1\) on n2"),
        interrupt_at_fault(cluster),
    ):
        wait_for_signal()


def test_an_error_of_the_stage_stays_its_own_while_the_cluster_lives(tmp_path):
    living = part("sleep", "60")
    try:
        cluster = RayCluster("a:1", tmp_path / "ray.log", ["n1"], {}, {"head": living})
        with pytest.raises(StageFailed, match="loss is nan"), interrupt_at_fault(cluster):
            raise StageFailed("loss is nan")
    finally:
        living.kill()
        living.wait()


def test_the_job_goes_back_to_the_queue(program, tmp_path, capsys):
    program("scontrol", f"echo $* > {tmp_path}/said")
    assert back_to_queue(TWO, "rl: stopped after step 3", 75) == 0
    assert (tmp_path / "said").read_text() == "requeue 7\n"
    assert "rl: stopped after step 3; job 7 is back in the queue." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("job_is", "up", "keeps_off"),
    [
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=(null)", "n1 n2 n3", "ExcNodeList=n2"),
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=n4", "n1 n2 n3 n4", "ExcNodeList=n2,n4"),
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=n3", "n1 n2 n3", None),  # two are needed
        ("Partition=gpu ReqNodeList=n[1-2] ExcNodeList=(null)", "n1 n2 n3", None),
    ],
)
def test_back_in_the_queue_it_keeps_off_bad_nodes_where_others_are_enough(
    program, tmp_path, capsys, job_is, up, keeps_off
):
    answers = f"job) echo '{job_is}';; hostnames) echo $3;;"
    program("scontrol", f'echo $* >> {tmp_path}/said; case "$2" in {answers} esac')
    program("sinfo", f"printf '%s\\n' {up}")
    assert back_to_queue(TWO, "rl: n2 is silent", 1, ["n2"]) == 0
    updates = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("update")]
    assert updates == ([f"update JobId=7 {keeps_off}"] if keeps_off else [])
    assert ("keeps off n2" in capsys.readouterr().out) is bool(keeps_off)


def test_it_keeps_off_them_although_slurms_signal_ends_the_first_that_asks(program, tmp_path, capsys):
    killed = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; kill -TERM $$; }}"
    told = "echo 'Partition=gpu ReqNodeList=(null) ExcNodeList=(null)'"
    program("scontrol", f'case "$2" in job) {told};; esac')
    program("sinfo", f"{killed}; printf '%s\\n' n1 n2 n3")
    assert back_to_queue(TWO, "rl: n2 is silent", 1, ["n2"]) == 0
    assert "keeps off n2" in capsys.readouterr().out


def test_a_job_that_slurm_does_not_requeue_keeps_its_exit_code(program, capsys):
    program("scontrol", "echo requeue disabled >&2; exit 1")
    assert back_to_queue(TWO, "rl: stopped after step 3", 75) == 75
    assert "requeue disabled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [(WentBack("rl: alarm: nan"), 0, "is back in the queue"), (AlarmStop("rl stopped: nan"), 1, "not started again")],
)
def test_an_alarm_sends_the_job_back_or_ends_it(monkeypatch, program, tmp_path, capsys, outcome, code, said):
    program("scontrol", f"echo $* >> {tmp_path}/asked")

    def run_on_nodes(*_):
        raise outcome

    monkeypatch.setattr(job, "run_on_nodes", run_on_nodes)
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    assert job.run_attempt_on_nodes("rl", None, TWO, None, Signals("rl", tmp_path), tmp_path) == code
    assert said in capsys.readouterr().out and (tmp_path / "asked").exists() is (code == 0)
    assert not (tmp_path / "failures.jsonl").exists()  # no failure of a node


TASKS = 'for i in 0 1; do SLURM_PROCID=$i SLURMD_NODENAME=n$((i + 1)) "$@"; done'  # in the place of srun


def test_a_job_of_one_node_keeps_slurms_names_of_other_devices_from_its_stage(monkeypatch, tmp_path):
    """verl refuses ROCR_VISIBLE_DEVICES beside CUDA_VISIBLE_DEVICES, and Slurm sets both on a node with GPUs."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(job, "check_nodes", lambda *_, **__: None)
    monkeypatch.setattr("retool_mcore.preflight.run.check", lambda *_: None)
    seen = {}
    monkeypatch.setattr(job, "run_attempt", lambda *_, **__: seen.update(os.environ))
    config = configure("sft", [f"runs_dir={tmp_path}", "name=t"], ONE)
    job.run_on_nodes("sft", config, ONE, Site("default"), Signals("sft", tmp_path))
    assert "ROCR_VISIBLE_DEVICES" not in seen and seen["CUDA_VISIBLE_DEVICES"] == "0"


def test_the_stacks_of_a_stage_that_hangs_are_written_on_every_node(tmp_path):
    sleeping = subprocess.Popen(["sleep", "60"], env=os.environ | {processes.STAGE_ID: node_mark(TWO.mark, 1)})
    try:
        job.dump_nodes(TWO, lambda options, command: ["bash", "-c", TASKS, "srun", *command], tmp_path)
    finally:
        sleeping.kill()
        sleeping.wait()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*.txt")] == [Path(f"n2/{sleeping.pid}.txt")]
    assert "sleep 60" in (tmp_path / f"n2/{sleeping.pid}.txt").read_text()


def test_exit_codes_of_the_command(tmp_path):
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    for arguments in (["rl"], ["prepare"], []):
        command = [sys.executable, "-m", "retool_mcore.cluster.job", *arguments]
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=Path(job.__file__).parents[2])
        assert done.returncode == 2 and done.stderr.startswith("retool: "), done.stderr


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
