"""Preemption on the real Slurm with a light stage: a partition whose jobs another one's put back into the queue."""

import pytest
from light_jobs import submit, tell, wait_for, wait_for_steps
from slurm_clusters import other_cluster

from benchmarks.cluster.slurm_jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(1800)]
PARTITIONS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters={parameters}
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""


@pytest.fixture
def preemptive(tmp_path, request):
    settings = {"grace_s": 40, "parameters": "idle_on_node_suspend"} | getattr(request, "param", {})
    with other_cluster(tmp_path / "slurm", more=PARTITIONS.format(**settings)) as cluster:
        yield cluster


def preempt(job: Job, number: int) -> None:
    """Another job takes the nodes, for 5 s. Returns once `job` has been started again for the `number`-th time."""
    more = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
    other = job.cluster.run("sbatch", "--parsable", *more).strip()
    job.cluster.wait(other, "RUNNING", "COMPLETED", timeout_s=200)
    wait_for(lambda: job.state()["Restarts"] == str(number) and job.state()["JobState"] == "RUNNING", job)


def test_two_preemptions_within_one_step_are_no_failures(preemptive, tmp_path):
    runs = tmp_path / "runs"
    job = submit(preemptive, runs, "--partition=low", "--exclusive", nodes=2)
    wait_for_steps(job)
    tell(runs, step_s=3000)  # as a step of 74 minutes is, within which both preemptions come
    wait_for(lambda: job.state()["JobState"] == "RUNNING", job)
    preempt(job, 1)
    wait_for(lambda: len(list(job.folder.glob("metrics/attempt_*.jsonl"))) == 2, job)
    preempt(job, 2)
    tell(runs)
    wait_for(lambda: len(list(job.folder.glob("metrics/attempt_*.jsonl"))) == 3, job)
    assert not (job.folder / "failures.jsonl").exists(), job.output()
    assert job.output().count("sft: the job was preempted, which counts as no failure") == 2, job.output()


@pytest.mark.parametrize("preemptive", [{"grace_s": 300, "parameters": "preempt_send_user_signal"}], indirect=True)
def test_a_cluster_that_warns_at_the_preemption_has_the_step_saved(preemptive, tmp_path):
    """With this setting Slurm sends USR1 to the batch script as the grace begins, and no SIGTERM to the steps."""
    job = submit(preemptive, tmp_path / "runs", "--partition=low", "--exclusive", nodes=2)
    wait_for_steps(job)
    preempt(job, 1)
    first = max(job.attempts()[0])
    wait_for_steps(job)
    assert min(job.attempts()[1]) == first + 1, "no step is lost"
    assert f"sft: stopped after step {first} for the time limit; job {job.id} is back in the queue" in job.output()
    assert not (job.folder / "failures.jsonl").exists()
