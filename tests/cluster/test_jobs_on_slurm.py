"""What a user and Slurm do to jobs, on the real Slurm with a light stage: arrays, two jobs of one run, stops, a
controller that is away."""

import re
import tempfile
import time
from pathlib import Path

import pytest
from light_jobs import PATIENCE_S, step_of, submit, tell, wait_for, wait_for_steps

from retool_mcore import temporary
from retool_mcore.state import chain
from tests.support.slurm import slurm_faults, slurm_here
from tests.support.slurm.slurm_jobs import ENV, RETOOL, Job

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def warn(job: Job) -> None:
    """Slurm's signal before the time limit."""
    slurm_faults.usr1(job)


class Task(Job):
    """A task of an array: its run is t-TASK."""

    @property
    def task(self) -> str:
        return self.id.partition("_")[2]

    @property
    def folder(self) -> Path:
        return self.runs / f"t-{self.task}" / self.stage

    def output(self) -> str:
        path = self.runs / f"t/slurm/{self.id}-{self.stage}.out"
        return path.read_text() if path.exists() else ""


def test_one_task_of_an_array_goes_back_to_the_queue_and_the_other_trains_on(cluster, tmp_path):
    """The task whose SLURM_JOB_ID is the array's own number: `scontrol requeue` of that number means all tasks."""
    array = submit(cluster, tmp_path / "runs", "--array=1-2").id
    tasks = [Task(cluster, f"{array}_{number}", "sft", tmp_path / "runs") for number in (1, 2)]
    for task in tasks:
        wait_for_steps(task)
    (first,) = [task for task in tasks if task.state()["JobId"] == array]
    (other,) = [task for task in tasks if task is not first]
    warn(first)
    wait_for(lambda: "is back in the queue" in first.output(), first)
    before = step_of(first)
    assert (
        f"sft: stopped after step {before} for the time limit; job {first.id} is back in the queue." in first.output()
    )
    wait_for_steps(other)
    assert other.state()["JobState"] == "RUNNING" and other.state()["Restarts"] == "0", other.output()
    wait_for_steps(first)
    assert first.state()["Restarts"] == "1" and min(first.attempts()[1]) == before + 1, first.output()
    assert len(other.attempts()) == 1 and "requeue" not in other.output().lower()


def temporary_files(job: Job) -> list[Path]:
    """A folder for each start of the job's stage, which it has made for temporary files and not removed."""
    log = job.folder / "log.txt"
    return [Path(found) for found in re.findall(r"^temporary files: (.*)", log.read_text(), re.MULTILINE)]


@pytest.mark.parametrize("length", [0, pytest.param(150, marks=pytest.mark.nightly)], ids=["/tmp", "a long TMPDIR"])
def test_jobs_on_one_node_do_not_meet_in_tmpdir_and_leave_nothing_there(cluster, tmp_path, monkeypatch, length):
    """One ends on its own, one by a failure and then by scancel; a socket's name fits below either's folder."""
    base = tmp_path / ("d" * length) if length else Path(tempfile.gettempdir())
    base.mkdir(exist_ok=True)
    if length:
        monkeypatch.setenv("TMPDIR", str(base))
    jobs = [submit(cluster, tmp_path / name, "--nodelist=n1") for name in "ab"]
    for job in jobs:
        wait_for_steps(job)
    (first,), (second,) = map(temporary_files, jobs)
    for job, path in zip(jobs, (first, second), strict=True):
        assert path.resolve().parent == base / f"retool-job-{job.id}-0" and path.is_dir()
        assert len(str(path.parent)) + temporary.ROOM <= temporary.MOST_BYTES
    tell(jobs[0].runs, steps=step_of(jobs[0]) + 2)
    tell(jobs[1].runs, fails_on="n1", fails=[1])
    assert jobs[0].finish()["Restarts"] == "0"
    wait_for(lambda: len(temporary_files(jobs[1])) == 2, jobs[1])
    again = temporary_files(jobs[1])[1]
    assert again.resolve().parent == base / f"retool-job-{jobs[1].id}-1" and again.is_dir()
    cluster.run("scancel", jobs[1].id)
    cluster.wait(jobs[1].id, "CANCELLED", timeout_s=PATIENCE_S)
    wait_for(lambda: not any(any(base.glob(f"retool-job-{job.id}-*")) for job in jobs), jobs[1], timeout_s=30)


def refused(job: Job, other: Job) -> str:
    """What the job printed, which must have been refused with its sentence for the other's sake."""
    ended = job.cluster.wait(job.id, "FAILED", "COMPLETED", timeout_s=PATIENCE_S)
    assert ended["ExitCode"] == "2:0" and ended["Restarts"] == "0", job.output()
    assert f"retool: sft of this run is at work in job {other.id}: wait for it, or give" in job.output()
    return job.output()


@pytest.mark.parametrize(
    "locks", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["locks", "locks of each client alone"]
)
def test_a_second_submission_is_refused_while_the_first_is_at_work(cluster, tmp_path, locks):
    """Both while the first still looks at its nodes and once it trains; the first keeps its marker and goes on."""
    runs = tmp_path / "runs"
    tell(runs, locks=locks)
    first = submit(cluster, runs)
    wait_for(lambda: (first.folder / "running.json").exists(), first)
    early = submit(cluster, runs)
    wait_for_steps(first)
    late = submit(cluster, runs)
    for second in (early, late):
        refused(second, first)
    wait_for_steps(first)
    assert (first.folder / "running.json").exists() and len(first.attempts()) == 1
    shown = cluster.run(RETOOL, "status", str(runs / "t"), env=ENV)
    assert f"job {first.id}: " in shown and f"job {late.id}: " not in shown
    assert [start.why for start in chain.read(first.folder).starts] == ["", chain.OTHER_JOB, chain.OTHER_JOB]
    warn(first)
    wait_for(lambda: f"for the time limit; job {first.id} is back in the queue" in first.output(), first)
    assert not (first.folder / "failures.jsonl").exists()


@pytest.mark.nightly
def test_of_two_that_start_at_one_moment_one_trains(cluster, tmp_path):
    tell(tmp_path / "runs", locks=False)
    jobs = [submit(cluster, tmp_path / "runs") for _ in range(2)]
    wait_for(lambda: any(job.state()["JobState"] == "FAILED" for job in jobs), jobs[0])
    (lost,) = [job for job in jobs if job.state()["JobState"] == "FAILED"]
    (kept,) = [job for job in jobs if job is not lost]
    refused(lost, kept)
    wait_for_steps(kept)
    assert len(list(kept.folder.glob("metrics/attempt_*.jsonl"))) == 1


@pytest.mark.nightly
def test_a_requeued_job_waits_in_the_queue_for_the_one_that_took_its_run(cluster, tmp_path):
    runs = tmp_path / "runs"
    first = submit(cluster, runs)
    wait_for_steps(first)
    warn(first)
    wait_for(lambda: first.state()["JobState"] == "PENDING", first)
    cluster.run("scontrol", "hold", first.id)
    second = submit(cluster, runs)
    wait_for_steps(second)
    cluster.run("scontrol", "release", first.id)
    wait_for(lambda: f"afterany:{second.id}" in first.state()["Dependency"], first)
    assert first.state()["JobState"] in ("PENDING", "COMPLETING") and not (first.folder / "failures.jsonl").exists()
    assert f"job {first.id} is back in the queue and waits for job {second.id}." in first.output()
    tell(runs, steps=step_of(second) + 2)
    assert second.finish()["Restarts"] == "0"
    assert first.finish(timeout_s=PATIENCE_S)["Restarts"] == "2"
    assert "sft: complete already with this configuration" in first.output()
    assert not (first.folder / "failures.jsonl").exists()


def test_a_stop_that_the_user_asks_for_ends_the_job_with_its_reason(cluster, tmp_path):
    job = submit(cluster, tmp_path / "runs")
    wait_for_steps(job)
    run = str(tmp_path / "runs" / "t")
    assert "sft" in cluster.run(RETOOL, "stop", run, env=ENV)
    ended = cluster.wait(job.id, "FAILED", "COMPLETED", timeout_s=PATIENCE_S)
    assert ended["ExitCode"] == "75:0" and ended["Restarts"] == "0", job.output()
    step = step_of(job)
    assert f"sft: stopped at step {step}, start it again to go on: it was asked to (retool stop" in job.output()
    assert "time limit" not in job.output() and not (job.folder / "failures.jsonl").exists()


@pytest.mark.parametrize("end", ["failure", pytest.param("time limit", marks=pytest.mark.nightly)])
def test_scancel_while_the_stage_is_being_ended_wins(cluster, tmp_path, end):
    runs = tmp_path / "runs"
    tell(runs, sweep_s=4)
    job = submit(cluster, runs)
    wait_for_steps(job)
    if end == "failure":
        tell(runs, sweep_s=4, fails_on="n1", fails=[1])
    else:
        warn(job)
    over = job.folder / "metrics" / "attempt_001.over"
    wait_for(over.exists, job)
    time.sleep(1.0)
    cluster.run("scancel", job.id)
    cluster.wait(job.id, "CANCELLED", timeout_s=PATIENCE_S)
    time.sleep(8.0)  # more than KillWait: whoever would requeue it has done so
    state = job.state()
    assert state["JobState"] == "CANCELLED" and state["Restarts"] == "0", job.output()
    assert "is back in the queue" not in job.output()


@pytest.mark.nightly
def test_a_controller_that_is_away_at_the_requeue_is_asked_again(cluster, tmp_path):
    """20 s, as a controller is that restarts; the stage ends meanwhile, and nobody answers."""
    job = submit(cluster, tmp_path / "runs")
    wait_for_steps(job)
    cluster.stop_controller()
    try:
        (job.folder / "STOP").write_text("time limit\n")
        deadline = time.monotonic() + PATIENCE_S
        while not any("scontrol requeue" in command for command in cluster.processes("n1").values()):
            assert time.monotonic() < deadline, job.output()
            time.sleep(0.1)
        time.sleep(20.0)
    finally:
        slurm_here.start_controller(cluster)
    wait_for(lambda: f"job {job.id} is back in the queue" in job.output(), job)
    wait_for_steps(job)
    assert job.state()["Restarts"] == "1" and not (job.folder / "failures.jsonl").exists(), job.output()
