"""The time limit of a job on the real Slurm, with a light stage: too short, extended, shortened."""

import re
import time

import pytest
from light_jobs import step_of, submit, tell, wait_for, wait_for_steps

from tests.support.slurm import slurm_faults
from tests.support.slurm.slurm_jobs import ENDS, Job

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(1800)]


def test_a_limit_that_is_over_before_the_first_step_ends_the_job_after_two_starts(cluster, tmp_path):
    """Slurm's signal comes at once where the limit is shorter than the 10 minutes before it."""
    runs = tmp_path / "runs"
    tell(runs, start_s=300)
    job = submit(cluster, runs, "--time=5")
    ended = cluster.wait(job.id, *ENDS, timeout_s=900)
    assert ended["JobState"] == "FAILED" and ended["Restarts"] == "1" and ended["ExitCode"] == "1:0", job.output()
    assert job.output().count("the job's time was over before a single step") >= 2, job.output()
    assert "not started again: the same error came twice in a row after step 0" in job.output()


def test_a_limit_that_is_extended_lets_the_job_train_on(cluster, tmp_path):
    """The step ends after the old limit, and Slurm has warned of that one."""
    runs = tmp_path / "runs"
    tell(runs, ask_s=2, step_s=100)
    job = submit(cluster, runs, "--time=6")
    wait_for((job.folder / "metrics" / "attempt_001.jsonl").exists, job)
    slurm_faults.usr1(job)  # Slurm's own has come while Python was starting, or not
    wait_for(lambda: "the time limit is near" in job.output(), job)
    cluster.run("scontrol", "update", f"JobId={job.id}", "TimeLimit=120")
    wait_for(lambda: "the job's time now ends +114 minutes from where it did" in job.output(), job)
    assert not (job.folder / "STOP").exists(), "the request is withdrawn"
    wait_for(lambda: step_of(job) >= 3 and time.time() > begun(job) + 6 * 60 + 15, job, timeout_s=900)
    assert job.state()["JobState"] == "RUNNING" and job.state()["Restarts"] == "0", job.output()
    assert len(job.attempts()) == 1 and "queue" not in job.output()


def test_a_limit_that_is_shortened_stops_the_job_in_good_order(cluster, tmp_path):
    """Before a maintenance, say; the trainer saves and goes back to the queue while there is time."""
    runs = tmp_path / "runs"
    tell(runs, ask_s=2, step_s=1)
    job = submit(cluster, runs, "--time=120")
    wait_for_steps(job)
    minutes = int((time.time() - begun(job)) / 60) + 5
    cluster.run("scontrol", "update", f"JobId={job.id}", f"TimeLimit={minutes}")
    wait_for(lambda: "is back in the queue" in job.output(), job, timeout_s=400)
    first = job.attempts()[0]
    assert re.search(r"the job's time now ends -1\d\d minutes from where it did", job.output()), job.output()
    assert f"sft: stopped after step {max(first)} for the time limit; job {job.id} is back" in job.output()
    assert "DUE TO TIME LIMIT" not in job.output() and not (job.folder / "failures.jsonl").exists()


def begun(job: Job) -> float:
    return time.mktime(time.strptime(job.state()["StartTime"], "%Y-%m-%dT%H:%M:%S"))
