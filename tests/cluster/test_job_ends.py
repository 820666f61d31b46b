"""What becomes of a job when its attempt ends: at a time limit, after a stop, a preemption or an alarm."""

import json
import signal

import pytest

from retool_mcore.cluster import crash_marker, job
from retool_mcore.cluster.job import (
    Allocation,
    run_attempt_on_nodes,
)
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.ray_cluster import ClusterFailed
from retool_mcore.cluster.retry import TOO_SHORT
from retool_mcore.cluster.site import Site
from retool_mcore.runner.launch import AlarmStop, Paused, StageFailed, Stopped, WentBack
from retool_mcore.state import stop

pytestmark = pytest.mark.usefixtures("signal_handlers")
TWO = Allocation(7, 1, ("n1", "n2"), 8)
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


PREEMPTION = "echo 'PreemptTime={} StartTime=2026-11-24T10:00:00'"


@pytest.mark.parametrize(
    ("time_", "outcome", "code", "failures"),
    [
        ("2026-11-24T11:00:00", ClusterFailed("Ray's step on the other nodes ended"), 0, 0),
        ("2026-11-24T11:00:00", StageFailed("sft failed (exit code 143): got signal: 15"), 0, 0),
        ("2026-11-24T11:00:00", Stopped(signal.SIGTERM), 0, 0),
        ("None", StageFailed("loss is nan"), 0, 1),
        ("2026-11-24T09:00:00", StageFailed("loss is nan"), 0, 1),  # of an earlier start
        # Once the grace is over, or where there is none, Slurm has put the job back itself.
        ("None Restarts=2", StageFailed("sft failed (exit code 143): got signal: 15"), 0, 0),
        ("None Restarts=2", Stopped(signal.SIGTERM), 0, 0),
        ("None Restarts=1", StageFailed("loss is nan"), 0, 1),
        ("None Restarts=2 down", StageFailed("n2 is gone"), 0, 1),  # put back for a lost node
    ],
)
def test_preemption_counts_as_no_failure(monkeypatch, program, tmp_path, capsys, time_, outcome, code, failures):
    program("scontrol", f"[ $1 != requeue ] || echo $* >> {tmp_path}/said; {PREEMPTION.format(time_)}")
    program("sinfo", f"printf '%s\\n' idle {'down*' if 'down' in time_ else 'mixed'}")
    program("squeue", "echo '7|COMPLETING|None'")

    def run_on_nodes(*_):
        raise outcome

    monkeypatch.setattr(job, "run_on_nodes", run_on_nodes)
    monkeypatch.setattr(job, "sweep", lambda *_: None)
    assert job.run_attempt_on_nodes("rl", None, TWO, Site("default"), Signals("rl", tmp_path), tmp_path) == code
    assert ("the job was preempted" in capsys.readouterr().out) is (failures == 0)
    assert (tmp_path / "said").exists() is ("Restarts=2" not in time_), "Slurm is not asked for what it has done"
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
