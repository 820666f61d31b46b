"""What benchmarks.cluster.faults counts as lost and doubled where rollouts run ahead of the training."""

import json

import pytest

from benchmarks.cluster import faults
from retool_mcore.metrics import records
from tests.support.slurm import slurm_jobs

N = 2


@pytest.fixture
def run(tmp_path):
    """Writes a run whose steps trained on these groups; `offered` were drawn in all. Returns its job."""

    def write(*steps, offered, dropped=0, cut=0):
        job = slurm_jobs.Job(None, "1", "rl", tmp_path)
        for step, groups in enumerate(steps, 1):
            rows = [_row(step, group, sample) for group in groups for sample in range(N)]
            records.write_step(job.folder / "trajectories", step, rows[cut if step == 1 else 0 :])
        (job.folder / "metrics").mkdir()
        lines = [{"step": step, "data": {"filters/groups/failed": dropped * (step == 1)}} for step in range(1, 4)]
        (job.folder / "metrics/attempt_001.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        checkpoint = job.folder / "checkpoints" / f"global_step_{len(steps)}"
        (checkpoint / "actor/model/huggingface").mkdir(parents=True)
        (checkpoint / "COMPLETE").touch()
        (checkpoint / "curriculum.json").write_text(json.dumps({"offered": offered}))
        return job

    return write


def _row(step, group, sample):
    return {"step": step, "data_source": "a", "index": group, "sample": sample, "response_ids": [1], "calls": []}


def count(job):
    return slurm_jobs.wrong_groups(job, n=N, ahead=2)


def test_each_group_once_and_those_ahead_in_the_checkpoint(run):
    assert count(run([0, 1], [3, 2], [5, 4], offered=8)) == (0, {})


def test_a_dropped_group_is_not_lost(run):
    assert count(run([0, 1], [3, 2], [5, 6], offered=9, dropped=1)) == (0, {})


def test_a_group_that_was_drawn_and_never_trained_on_is_lost(run):
    assert count(run([0, 1], [3, 2], [5, 6], offered=9)) == (1, {})


def test_a_group_that_two_steps_trained_on_is_doubled_in_the_second(run):
    assert count(run([0, 1], [1, 2], [3, 4], offered=8)) == (0, {2: 1})


def test_a_trajectory_that_is_missing_makes_its_group_a_lost_one(run):
    assert count(run([0, 1], [3, 2], [5, 4], offered=8, cut=1)) == (1, {})


def test_the_groups_of_a_step_without_trajectories_are_lost(run):
    assert count(run([0, 1], [], [5, 4], offered=8)) == (2, {})


def test_faults_of_one_pipeline_hit_runs_of_that_pipeline():
    names = ["srun", "trainer rank, async", "trainer rank, one_step_off", "transport, async"]
    found = faults.chunks(names, 1, faults.random.Random(0))
    assert sorted((stage, sorted(chosen), pipeline) for stage, chosen, pipeline in found) == [
        ("rl", ["trainer rank, async", "transport, async"], "async"),
        ("rl", ["trainer rank, one_step_off"], "one_step_off"),
        ("sft", ["srun"], "sync"),
    ]
    assert "pipeline=async" in faults.size("rl", "async") and faults.size("rl", "sync") == faults.SIZES["rl"]
