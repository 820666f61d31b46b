"""SFT and RL on two nodes, as a user submits them: to the end, stopped near the time limit, killed, and refused."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.slurm import slurm_faults, slurm_here
from tests.support.slurm.slurm_jobs import fork, prepare, retool, submit, wrong_groups, wrong_steps

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory, slurm) -> Path:
    """A runs folder whose run `t` has its data and model."""
    runs = tmp_path_factory.mktemp("runs")
    prepare(slurm, runs)
    return runs


@pytest.fixture(scope="session")
def cold_started(prepared, slurm) -> Path:
    """`prepared`, with SFT carried to its end by one undisturbed job."""
    assert submit(slurm, "sft", prepared).finish()["Restarts"] == "0"
    return prepared


@pytest.fixture
def fresh(prepared, tmp_path) -> Path:
    """A runs folder of this test's own, with data and model of `prepared` and nothing else."""
    return fork(prepared, tmp_path / "runs")


@pytest.fixture
def undisturbed(cluster, cold_started) -> dict[int, dict]:
    """Metrics by step of SFT without a fault."""
    (steps,) = slurm_faults.Job(cluster, "0", "sft", cold_started).attempts()
    return steps


def test_sft_whole(cluster, cold_started, undisturbed):
    assert sorted(undisturbed) == list(range(1, 25))
    assert undisturbed[24]["train/loss"] < 0.8 * undisturbed[1]["train/loss"]
    assert (cold_started / "t/sft/policy/config.json").is_file()
    assert "sft" in retool(cluster, "status", str(cold_started / "t"))
    for node in (0, 1):  # what each rank said, apart and marked
        (said,) = (cold_started / "t/sft/ranks").glob(f"node{node}/*/attempt_0/0/stdout.log")
        line = next(line for line in said.read_text().splitlines() if line.strip())
        assert f"[rank{node}]:{line}" in (cold_started / "t/sft/log.txt").read_text()


@pytest.mark.nightly
def test_sft_stopped_by_usr1_then_killed_ends_as_an_undisturbed_one(cluster, fresh, undisturbed):
    """The signal before the time limit, then kill -9 of a rank on the second node: one job, three attempts."""
    job = submit(cluster, "sft", fresh)
    job.wait_for_step(attempt=1, step=2)
    slurm_faults.usr1(job)
    job.wait_for_step(attempt=2, step=9)
    slurm_faults.kill("rank", "n2")(job)
    assert job.finish()["Restarts"] == "2"

    assert "retool: sft failed (exit code 1): rank 1 on n2 was killed by SIGKILL" in job.output()
    first, second, third = job.attempts()
    assert 2 <= max(first) < 24 and max(second) < 24
    # Stopped on request, no step is lost or done twice; killed, it goes on from the last whole checkpoint.
    assert min(second) == max(first) + 1
    assert min(third) - 1 in (max(first), 8, 16) and min(third) <= max(second) + 1
    assert wrong_steps([first, second, third], undisturbed, "sft") == ([], [])


@pytest.mark.nightly
def test_sft_goes_on_after_its_job_process_is_killed_and_after_a_node_is_lost(cluster, fresh, undisturbed):
    job = submit(cluster, "sft", fresh)
    job.wait_for_step(attempt=1, step=9)
    slurm_faults.kill("job process", "n1")(job)
    job.wait_for_step(attempt=2, step=10)
    cluster.lose("n2")
    cluster.wait(job.id, "PENDING", "COMPLETING", timeout_s=120)
    slurm_here.start_node(cluster, "n2")
    assert job.finish()["Restarts"] == "2"
    assert "the job's own process was killed" in job.output()
    assert wrong_steps(job.attempts(), undisturbed, "sft") == ([], [])


@pytest.mark.nightly
def test_a_rank_that_stands_still_is_noticed_and_the_job_goes_on(cluster, fresh, undisturbed):
    job = submit(cluster, "sft", fresh, "watchdog_minutes=3")
    job.wait_for_step(attempt=1, step=9)
    slurm_faults.kill("rank", "n2", signum=signal.SIGSTOP)(job)
    assert job.finish()["Restarts"] == "1"
    assert re.search(
        r"retool: sft failed: phase \w+ stood still for \S+ minutes; what its processes did: ", job.output()
    )
    stacks = [path.read_text() for path in (job.folder / "stacks/attempt_001/n2").glob("*.txt")]
    assert any("-m retool_mcore.train.sft" in text and "State:\tT (stopped)" in text for text in stacks), stacks
    assert wrong_steps(job.attempts(), undisturbed, "sft") == ([], [])


@pytest.mark.nightly
def test_scancel_ends_every_process_and_another_submission_goes_on(cluster, fresh, undisturbed):
    first = submit(cluster, "sft", fresh)
    first.wait_for_step(attempt=1, step=9)
    while not (first.folder / "checkpoints" / "global_step_8" / "COMPLETE").exists():  # saved beside the steps
        assert first.state()["JobState"] == "RUNNING", first.output()[-6000:]
        time.sleep(0.1)
    slurm_faults.scancel(first)
    cluster.wait(first.id, "CANCELLED")
    assert not slurm_faults.left(cluster)
    second = submit(cluster, "sft", fresh)
    assert second.finish()["Restarts"] == "0"
    assert min(second.attempts()[1]) in (9, 17)  # after the last whole checkpoint
    assert wrong_steps(second.attempts(), undisturbed, "sft") == ([], [])


@pytest.mark.nightly
def test_scancel_while_a_stage_that_failed_is_being_ended_wins(cluster, fresh):
    job = submit(cluster, "sft", fresh)
    job.wait_for_step(attempt=1, step=2)
    slurm_faults.kill("rank", "n2")(job)
    time.sleep(2.0)
    slurm_faults.scancel(job)
    cluster.wait(job.id, "CANCELLED")
    assert not slurm_faults.left(cluster)
    state = job.state()
    assert state["JobState"] == "CANCELLED" and state["Restarts"] == "0", job.output()
    assert "back in the queue" not in job.output()


def test_a_wrong_path_is_refused_with_its_sentence(cluster, fresh):
    job = submit(cluster, "sft", fresh, "init_from=/no/such/model")
    ended = cluster.wait(job.id, "FAILED", timeout_s=120)
    said = job.output()
    assert ended["ExitCode"] == "2:0" and ended["Restarts"] == "0", said
    assert re.search(r"^retool: .*/no/such/model", said, re.MULTILINE), said
    assert "Traceback" not in said


def test_tensorboard_prints_the_tunnel_and_answers_at_its_end(cluster, prepared):
    job = submit(cluster, "tensorboard", prepared)
    page = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).status)"
    deadline = time.monotonic() + 90
    while True:
        try:
            line = r"^  ssh -N -L 6006:localhost:(\d+) -J \S+@\S+ \S+@(\S+)$"
            port, node = re.search(line, job.output(), re.MULTILINE).groups()
            assert cluster.on(node, sys.executable, "-c", page, f"http://localhost:{port}/") == "200\n"
            break
        except (AttributeError, subprocess.CalledProcessError):
            assert time.monotonic() < deadline, job.output()
            time.sleep(0.5)


@pytest.mark.nightly
def test_rl_over_two_nodes(cluster, cold_started):
    """Ray across the two nodes, the policy's halves on different ones."""
    job = submit(cluster, "rl", cold_started)
    assert job.finish()["Restarts"] == "0"
    (steps,) = job.attempts()
    assert sorted(steps) == [1, 2]
    for metrics in steps.values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-5
    assert (cold_started / "t/rl/policy/config.json").is_file()


@pytest.mark.nightly
def test_rollouts_on_a_node_of_their_own(cluster, cold_started, tmp_path):
    """One node trains, the other generates ahead of it; a killed engine costs a start, and no group is trained on twice
    or left out."""
    runs = fork(cold_started, tmp_path / "runs", "sft")
    alone = ("parallel.nodes=1", "parallel.tp=1", "parallel.sequence_parallel=false")
    words = (*alone, "pipeline=one_step_off", "data.rl.steps=4")
    job = submit(cluster, "rl", runs, *words)
    job.wait_for_step(attempt=1, step=2)
    engines = {node: [c for c in cluster.processes(node).values() if "VLLM::EngineCore" in c] for node in ("n1", "n2")}
    ranks = {node: [c for c in cluster.processes(node).values() if "WorkerDict" in c] for node in ("n1", "n2")}
    (ahead,) = [node for node in engines if engines[node]]
    assert not ranks[ahead] and ranks[{"n1": "n2", "n2": "n1"}[ahead]], (engines, ranks)
    slurm_faults.kill("vLLM engine", ahead)(job)
    assert job.finish()["Restarts"] == "1", job.output()[-6000:]
    first, second = job.attempts()
    # The engine is killed after step 2, whose checkpoint may have become whole by then.
    assert max(first) in (2, 3) and min(second) in (1, 3) and max(second) == 4, (first, second)
    assert wrong_groups(job, n=4, ahead=4) == (0, {})
