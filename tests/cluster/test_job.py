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
    read_allocation,
    run_attempt_on_nodes,
)
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.node import node_mark
from retool_mcore.cluster.ray_cluster import ClusterFailed, RayCluster
from retool_mcore.cluster.retry import TOO_SHORT
from retool_mcore.cluster.site import Site
from retool_mcore.runner import processes
from retool_mcore.runner.launch import AlarmStop, AlreadyRunning, Paused, StageFailed, Stopped, WentBack
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


LIMIT, SCANCEL, GUARDED = "COMPLETING|TimeLimit", "COMPLETING|None", "PENDING|BeginTime"


@pytest.fixture
def ended(program, tmp_path, monkeypatch):
    """Runs an attempt that ends with a signal while Slurm says of the job what is given; (exit code, requeued)."""
    program("scontrol", f"[ $1 != requeue ] || echo $* >> {tmp_path}/said")
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    folder = tmp_path / "rl"
    (folder / "metrics").mkdir(parents=True)

    def run(signum: int, state: str, steps: str = '{"step": 1, "data": {"x": 1}}\n', restart: int = 0, judged=False):
        if not judged:
            crash_marker.begin(folder, f"7-{restart}", "n1")
        program("squeue", f"echo '7|{state}'")
        (tmp_path / "said").unlink(missing_ok=True)
        allocation = Allocation(7, restart, ("n1", "n2"), 8)
        signals = Signals("rl", folder, allocation.mark)
        signals.running = True

        def stopped(*_):
            (folder / "metrics" / f"attempt_{restart + 1:03d}.jsonl").write_text(steps)
            raise Stopped(signum)

        monkeypatch.setattr(job, "run_on_nodes", stopped)
        code = run_attempt_on_nodes("rl", None, allocation, Site("default"), signals, folder)
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
    assert (
        "time was over before a single step (of an evaluation: a sample) ended: give it a longer"
        in capsys.readouterr().out
    )
    assert len([json.loads(line) for line in (tmp_path / "rl/failures.jsonl").read_text().splitlines()]) == 2


def test_what_the_guard_has_judged_at_the_time_limit_is_not_judged_again(ended):
    """It has put the job back, or has not since no step ended; a second judgement would count a second failure."""
    assert ended(signal.SIGTERM, GUARDED, steps="", judged=True) == (75, False)


@pytest.mark.parametrize(("restart", "code"), [(0, 2), (1, 0)])
def test_a_stage_that_another_job_is_at_work_on_is_left_alone(program, tmp_path, monkeypatch, capsys, restart, code):
    """Also where locks are of one client alone (Lustre's localflock): both would write one log and one checkpoint."""
    env = {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": str(restart), "SLURM_JOB_NODELIST": "n1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    program("scontrol", f'[ "$2" = hostnames ] && echo n1; [ $1 != requeue ] || echo $* >> {tmp_path}/said')
    program("squeue", "echo '7|RUNNING|None'")
    folder = tmp_path / "t" / "sft"
    folder.mkdir(parents=True)
    crash_marker.begin(folder, "7-0", "n5")
    monkeypatch.setattr(job, "run_on_nodes", lambda *_: pytest.fail("started"))
    assert job.main(["sft", f"runs_dir={tmp_path}", "name=t"]) == code
    out = capsys.readouterr()
    assert "sft of this run is at work in job 7: wait for it" in out.out + out.err
    assert crash_marker.unreported_crash(folder, "7"), "the other job's marker stays"
    assert (tmp_path / "said").exists() is (restart == 1)


@pytest.mark.parametrize(("restart", "code"), [(0, None), (1, 0)])
def test_a_lock_that_a_lost_node_still_holds_sends_a_requeued_job_back(program, tmp_path, monkeypatch, restart, code):
    program("scontrol", f"echo $* >> {tmp_path}/said")
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    allocation = Allocation(7, restart, ("n1", "n2"), 8)

    def locked(*_):
        raise AlreadyRunning("rl runs already in t/rl: wait for it, or give this run another name=.")

    monkeypatch.setattr(job, "run_on_nodes", locked)
    arguments = ("rl", None, allocation, Site("default"), Signals("rl", tmp_path, allocation.mark), tmp_path)
    if code is None:
        with pytest.raises(AlreadyRunning):
            run_attempt_on_nodes(*arguments)
    else:
        assert run_attempt_on_nodes(*arguments) == code and "requeue 7" in (tmp_path / "said").read_text()


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
    assert back_to_queue(TWO, Signals("rl", tmp_path), "rl: stopped after step 3", 75) == 0
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
    assert back_to_queue(TWO, Signals("rl", tmp_path), "rl: n2 is silent", 1, ["n2"]) == 0
    updates = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("update")]
    assert updates == ([f"update JobId=7 {keeps_off}"] if keeps_off else [])
    assert ("keeps off n2" in capsys.readouterr().out) is bool(keeps_off)


def test_it_keeps_off_them_although_slurms_signal_ends_the_first_that_asks(program, tmp_path, capsys):
    killed = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; kill -TERM $$; }}"
    told = "echo 'Partition=gpu ReqNodeList=(null) ExcNodeList=(null)'"
    program("scontrol", f'case "$2" in job) {told};; esac')
    program("sinfo", f"{killed}; printf '%s\\n' n1 n2 n3")
    assert back_to_queue(TWO, Signals("rl", tmp_path), "rl: n2 is silent", 1, ["n2"]) == 0
    assert "keeps off n2" in capsys.readouterr().out


def test_a_job_that_slurm_does_not_requeue_keeps_its_exit_code(program, tmp_path, capsys):
    program("scontrol", "echo requeue disabled >&2; exit 1")
    assert back_to_queue(TWO, Signals("rl", tmp_path), "rl: stopped after step 3", 75) == 75
    assert "requeue disabled" in capsys.readouterr().out


@pytest.mark.parametrize(("restarts", "code"), [(2, 0), (99, 75)])
def test_a_controller_that_restarts_is_asked_again_for_the_requeue(
    program, tmp_path, monkeypatch, capsys, restarts, code
):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.05)
    monkeypatch.setattr(slurm.requeue, "__defaults__", (1.0,))
    count = f"echo x >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt {restarts} ]"
    program("scontrol", f'{count} || {{ echo "Unexpected message received for job 7" >&2; exit 1; }}')
    assert back_to_queue(TWO, Signals("rl", tmp_path), "rl: stopped after step 6", 75) == code
    said = capsys.readouterr().out
    assert ("is back in the queue" in said) is (code == 0) and ("Unexpected message" in said) is (code == 75)


UNREACHABLE = 'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'


def test_no_answer_at_the_time_limit_is_not_no(program, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.05)
    once = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; {UNREACHABLE}; }}"
    program("squeue", f"{once}; echo '7|COMPLETING|TimeLimit'")
    assert slurm.timed_out("7")
    program("squeue", UNREACHABLE)
    for left, timed_out in ((5.0, True), (3600.0, False)):
        stop.write_job_end(tmp_path / "end", time.time() + left)
        monkeypatch.setenv(stop.JOB_END, str(tmp_path / "end"))
        assert slurm.timed_out("7", patience_s=0.2) is timed_out
    program("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert not slurm.timed_out("7"), "that is an answer: Slurm no longer knows the job"


def test_scancel_during_the_end_of_a_stage_is_not_undone(program, tmp_path, capsys):
    program("scontrol", f"echo $* >> {tmp_path}/said")
    for state, code in ((SCANCEL, 143), (LIMIT, 0)):
        program("squeue", f"echo '7|{state}'")
        signals = Signals("rl", tmp_path)
        signals.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        assert back_to_queue(TWO, signals, "rl: to be started again", 1) == code
        assert ("was cancelled meanwhile" in capsys.readouterr().out) is (code == 143)
    requeues = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("requeue")]
    assert requeues == ["requeue 7"]


def test_a_task_of_an_array_asks_and_requeues_itself_alone(program, tmp_path):
    """`scontrol requeue 25` means every task of array 25, and squeue names a task 25_1."""
    env = {"SLURM_JOB_ID": "25", "SLURM_ARRAY_JOB_ID": "25", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "n1"}
    program("scontrol", f'[ "$2" = hostnames ] && echo n1; echo $* >> {tmp_path}/said')
    program("squeue", "printf '%s\\n' '25_1|COMPLETING|TimeLimit' '25_2|RUNNING|None'")
    allocation = read_allocation(env | {"SLURM_GPUS_ON_NODE": "8"})
    assert allocation.slurm_id == "25_1" and slurm.timed_out(allocation.slurm_id)
    assert slurm.states(["25_1", "25_2"])["25_2"].state == "RUNNING"
    assert back_to_queue(allocation, Signals("rl", tmp_path), "rl: stopped after step 3", 75) == 0
    assert (tmp_path / "said").read_text().splitlines()[-1] == "requeue 25_1"


PREEMPTION = "echo 'PreemptTime={} StartTime=2026-11-24T10:00:00'"


@pytest.mark.parametrize(
    ("time_", "outcome", "code", "failures"),
    [
        ("2026-11-24T11:00:00", ClusterFailed("Ray's step on the other nodes ended"), 0, 0),
        ("2026-11-24T11:00:00", StageFailed("sft failed (exit code 143): got signal: 15"), 0, 0),
        ("2026-11-24T11:00:00", Stopped(signal.SIGTERM), 0, 0),
        ("None", StageFailed("loss is nan"), 0, 1),
        ("2026-11-24T09:00:00", StageFailed("loss is nan"), 0, 1),  # of an earlier start
    ],
)
def test_preemption_counts_as_no_failure(monkeypatch, program, tmp_path, capsys, time_, outcome, code, failures):
    program("scontrol", PREEMPTION.format(time_))
    program("squeue", "echo '7|COMPLETING|None'")

    def run_on_nodes(*_):
        raise outcome

    monkeypatch.setattr(job, "run_on_nodes", run_on_nodes)
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    assert job.run_attempt_on_nodes("rl", None, TWO, Site("default"), Signals("rl", tmp_path), tmp_path) == code
    assert ("the job was preempted" in capsys.readouterr().out) is (failures == 0)
    assert (tmp_path / "failures.jsonl").exists() is (failures == 1)


@pytest.mark.parametrize(("why", "requeued"), [(stop.TIME_LIMIT, True), (stop.REQUEST, False)])
def test_a_stop_that_the_user_asked_for_ends_the_job(monkeypatch, program, tmp_path, capsys, why, requeued):
    program("scontrol", f"[ $1 != requeue ] || echo $* >> {tmp_path}/said")
    monkeypatch.setattr(job, "run_on_nodes", lambda *_: (_ for _ in ()).throw(Paused("rl", 34, why)))
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    code = job.run_attempt_on_nodes("rl", None, TWO, Site("default"), Signals("rl", tmp_path), tmp_path)
    assert code == (0 if requeued else 75) and (tmp_path / "said").exists() is requeued
    assert ("for the time limit" in capsys.readouterr().out) is requeued


@pytest.mark.parametrize("stage", ["rl", "eval", "export"])
def test_a_limit_that_ends_before_anything_is_done_ends_the_job_after_two_starts(
    monkeypatch, program, tmp_path, capsys, stage
):
    """Also where not even the stage has begun: the checks of the nodes and Ray's start take minutes."""
    program("scontrol", f"echo $* >> {tmp_path}/said")
    monkeypatch.setattr(job, "run_on_nodes", lambda *_: (_ for _ in ()).throw(Stopped(signal.SIGUSR1)))
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    codes = []
    for restart in (0, 1):
        allocation = Allocation(7, restart, ("n1", "n2"), 8)
        crash_marker.begin(tmp_path, allocation.mark, "n1")
        signals = Signals(stage, tmp_path, allocation.mark)
        codes.append(job.run_attempt_on_nodes(stage, None, allocation, Site("default"), signals, tmp_path))
    assert codes == [0, 1] and TOO_SHORT in capsys.readouterr().out


def test_an_evaluation_that_comes_forward_goes_back_to_the_queue_at_each_limit(monkeypatch, program, tmp_path):
    program("scontrol", f"echo $* >> {tmp_path}/said")
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    for restart in range(3):

        def one_more(*_):
            with (tmp_path / "trajectories.jsonl").open("a") as file:
                file.write("{}\n")
            raise Stopped(signal.SIGUSR1)

        monkeypatch.setattr(job, "run_on_nodes", one_more)
        allocation = Allocation(7, restart, ("n1", "n2"), 8)
        crash_marker.begin(tmp_path, allocation.mark, "n1")
        signals = Signals("eval", tmp_path, allocation.mark)
        assert job.run_attempt_on_nodes("eval", None, allocation, Site("default"), signals, tmp_path) == 0
    assert (tmp_path / "said").read_text().count("requeue") == 3 and not (tmp_path / "failures.jsonl").exists()


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
