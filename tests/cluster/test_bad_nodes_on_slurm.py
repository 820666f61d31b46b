"""Nodes that become unfit while a job runs, on a real Slurm of three nodes with a light stage and made-up reports."""

import json

import pytest
from light_jobs import submit, tell, wait_for, wait_for_steps
from made_reports import gpu
from slurm_clusters import other_cluster

from tests.support.slurm import slurm_faults

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(1800)]
GPUS = ("--gpus-per-node=8", "--exclusive")
LOST = {"n2": {"gpus": [gpu()] * 7}}  # as after Xid 79: the GPU has fallen off the bus


@pytest.fixture
def three(tmp_path):
    with other_cluster(tmp_path / "slurm", nodes=("n1", "n2", "n3")) as cluster:
        yield cluster


def submit_on_gpus(cluster, runs):
    job = submit(cluster, runs, *GPUS, nodes=2, layout="2x8-80g")
    wait_for_steps(job)
    assert job.state()["NodeList"] == "n[1-2]"
    return job


def test_a_node_that_is_unfit_at_a_requeue_is_left_out(three, tmp_path):
    """The job was stopped for its time limit, and Slurm hands it the same nodes again."""
    job = submit_on_gpus(three, tmp_path / "runs")
    tell(tmp_path / "runs", reports=LOST)
    slurm_faults.usr1(job)
    wait_for(lambda: job.state()["Restarts"] == "2" and job.state()["JobState"] == "RUNNING", job)
    wait_for_steps(job)
    assert job.state()["NodeList"] == "n[1,3]" and job.state()["ExcNodeList"] == "n2", job.output()
    assert "retool: node n2, GPUs: 7, 8 needed: " in job.output()
    assert f"job {job.id} is back in the queue and keeps off n2." in job.output()
    (failure,) = [json.loads(line) for line in (job.folder / "failures.jsonl").read_text().splitlines()]
    assert failure["nodes"] == ["n2"]
    first, second = job.attempts()
    assert min(second) == max(first) + 1, "nothing is lost"


@pytest.mark.parametrize(
    "report", [{"gpu_faults": ["GPU 3: 2 uncorrected ECC errors"]}, {"infiniband": 7}], ids=["ECC", "link"]
)
def test_a_stage_that_its_gpu_ends_goes_on_without_that_node(three, tmp_path, report):
    runs = tmp_path / "runs"
    job = submit_on_gpus(three, runs)
    tell(runs, reports={"n2": report}, fails_on="n2", fails=[1])
    wait_for(lambda: job.state()["Restarts"] == "1" and job.state()["JobState"] == "RUNNING", job)
    wait_for_steps(job)
    assert job.state()["NodeList"] == "n[1,3]" and job.state()["ExcNodeList"] == "n2", job.output()
    assert "NCCL error" in job.output() and "keeps off n2" in job.output()


def test_a_gpu_that_all_nodes_lack_at_the_first_start_is_wrong_input(three, tmp_path):
    tell(tmp_path / "runs", reports={node: {"gpus": [gpu()] * 4} for node in ("n1", "n2", "n3")})
    job = submit(three, tmp_path / "runs", *GPUS, nodes=2, layout="2x8-80g")
    ended = three.wait(job.id, "FAILED", "COMPLETED", timeout_s=300)
    assert ended["ExitCode"] == "2:0" and ended["Restarts"] == "0", job.output()
