"""Preemption on the real Slurm with a light stage: a partition whose jobs another one's put back into the queue."""

import pytest
from light_jobs import submit, tell, wait_for, wait_for_steps
from slurm_clusters import other_cluster

from retool_mcore.state import chain
from tests.support.slurm.slurm_jobs import Job

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(1800)]
PARTITIONS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=100 PreemptMode=OFF
"""


@pytest.fixture(params=[40, 0], ids=["grace", "no grace"])
def preemptive(tmp_path, request):
    """Within a grace the stage's steps get SIGTERM and the job puts itself back; without one Slurm does so at once."""
    with other_cluster(tmp_path / "slurm", more=PARTITIONS.format(grace_s=request.param)) as cluster:
        yield cluster


def preempt(job: Job, number: int) -> None:
    """Another job takes the nodes, for 5 s. Returns once `job` has been started again for the `number`-th time."""
    more = ("--partition=high", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=sleep 5")
    other = job.cluster.run("sbatch", "--parsable", *more).strip()
    job.cluster.wait(other, "RUNNING", "COMPLETED", timeout_s=200)
    wait_for(lambda: job.state()["Restarts"] == str(number) and job.state()["JobState"] == "RUNNING", job)


def test_two_preemptions_within_one_step_are_no_failures(preemptive, tmp_path, request):
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
    assert job.state()["Restarts"] == "2" and "failed" not in job.output(), job.output()
    if "no grace" not in request.node.name:  # which leaves KillWait's five seconds for a last word
        assert [start.why for start in chain.read(job.folder).starts] == [chain.PREEMPTION, chain.PREEMPTION, ""]
        assert job.output().count("sft: the job was preempted, or put back by hand") == 2, job.output()
