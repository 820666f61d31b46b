"""A job on the batch host, with small programs in the place of Slurm's commands; whole jobs: test_slurm_stages.py."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from retool_mcore.cluster import crash_marker, job
from retool_mcore.cluster.job import (
    Allocation,
    configure,
    interrupt_at_fault,
    run_attempt_on_nodes,
)
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.cluster.node import node_mark
from retool_mcore.cluster.ray_cluster import ClusterFailed, RayCluster
from retool_mcore.cluster.site import Site
from retool_mcore.runner import processes
from retool_mcore.runner.launch import AlreadyRunning, StageFailed

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox", "signal_handlers")
TWO = Allocation(7, 1, ("n1", "n2"), 8)
ONE = Allocation(7, 0, ("n1",), 8)


@pytest.mark.parametrize(("restart", "code"), [(0, 2), (1, 0)])
def test_a_stage_that_another_job_is_at_work_on_is_left_alone(program, tmp_path, monkeypatch, capsys, restart, code):
    """Also where locks are of one client alone (Lustre's localflock): both would write one log and one checkpoint."""
    env = {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": str(restart), "SLURM_JOB_NODELIST": "n1"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    program("scontrol", f'[ "$2" = hostnames ] && echo n1; [ $1 = show ] || echo $* >> {tmp_path}/said')
    program("squeue", "echo '7|RUNNING|None'")
    folder = tmp_path / "t" / "sft"
    folder.mkdir(parents=True)
    crash_marker.begin(folder, "7-0", "n5")
    monkeypatch.setattr(job, "run_on_nodes", lambda *_: pytest.fail("started"))
    assert job.main(["sft", f"runs_dir={tmp_path}", "name=t"]) == code
    out = capsys.readouterr()
    assert "sft of this run is at work in job 7" in out.out + out.err
    if restart:
        lines = (tmp_path / "said").read_text().splitlines()
        assert lines == ["requeue 8", "update JobId=8 Dependency=afterany:7"] and "waits for job 7" in out.out
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


def test_a_broken_cluster_ends_the_stage_with_its_cause(tmp_path):
    Signals("rl", tmp_path)
    log = tmp_path / "ray.log"
    log.write_text("srun: error: n2: task 0: Killed\n")
    cluster = RayCluster("a:1", log, ["n1", "n2"], {}, {"step on the other nodes": part("false")})
    with (
        pytest.raises(ClusterFailed, match=r"Ray's step on the other nodes ended \(exit code 1\) on n2"),
        interrupt_at_fault(cluster),
    ):
        time.sleep(60.0)  # until the signal


def test_a_killed_process_of_ray_is_named_though_its_part_still_ends_the_workers(tmp_path):
    """The stage fails over those workers first, with an error that names no cause."""
    log = tmp_path / "ray.log"
    log.write_text("  gcs_server [exit code=-9]\n")
    with subprocess.Popen(["sleep", "60"]) as living:
        cluster = RayCluster("a:1", log, ["n1"], {}, {"head": living})
        with (
            pytest.raises(ClusterFailed, match=r"Ray's gcs_server was killed by SIGKILL.*; its log: "),
            interrupt_at_fault(cluster),
        ):
            raise StageFailed("ActorUnavailableError: the actor is temporarily unavailable")
        living.kill()


def test_an_error_of_the_stage_stays_its_own_while_the_cluster_lives(tmp_path):
    living = part("sleep", "60")
    try:
        cluster = RayCluster("a:1", tmp_path / "ray.log", ["n1"], {}, {"head": living})
        with pytest.raises(StageFailed, match="loss is nan"), interrupt_at_fault(cluster):
            raise StageFailed("loss is nan")
    finally:
        living.kill()
        living.wait()


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
