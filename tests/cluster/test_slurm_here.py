"""What the project builds on, on the real Slurm: two nodes, the signal before the time limit, requeue, scancel."""

import os
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.support.slurm.slurm_cluster import NODES

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


def submit(cluster, folder: Path, script: str, *options: str) -> tuple[str, Path]:
    """Submits a batch script over two nodes; its job id and the file of its output."""
    out = folder / "out.txt"
    path = folder / "job.sh"
    path.write_text("#!/bin/bash\n" + textwrap.dedent(script))
    fixed = ("--parsable", "--nodes=2", "--requeue", "--open-mode=append", f"--output={out}")
    return cluster.run("sbatch", *fixed, *options, str(path)).strip(), out


def wait_for(text: str, out: Path, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not out.is_file() or text not in out.read_text():
        assert time.monotonic() < deadline, f"no {text!r} in {out.read_text() if out.is_file() else 'no output'!r}"
        time.sleep(0.2)


def test_two_nodes_with_names_addresses_and_gpus_of_their_own(cluster):
    assert cluster.run("sinfo", "-h", "-N", "-o", "%N %G").split() == ["n1", "gpu:8", "n2", "gpu:8"]
    said = cluster.run(
        "srun", "--quiet", "--nodes=2", "--gpus-per-node=2", "bash", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"
    )
    assert sorted(said.split("\n")[:2]) == ["n1 0,1", "n2 0,1"]
    addresses = cluster.run("srun", "--quiet", "--nodes=2", "hostname", "-i").split()
    assert len(set(addresses)) == 2 and not any(address.startswith("127.") for address in addresses)


@pytest.mark.parametrize("stage", ["sft", "rl", "eval", "export", "tensorboard", "sandbox"])
def test_the_batch_scripts_are_accepted(cluster, stage):
    """Slurm reads every #SBATCH line of theirs and finds nodes for them, with no site file changed."""
    cluster.run("sbatch", "--test-only", f"slurm/{stage}.sbatch", cwd=REPOSITORY)


def test_usr1_reaches_the_python_that_the_batch_script_became(cluster, tmp_path):
    script = f"""\
        exec {sys.executable} -uc '
        import signal
        signal.signal(signal.SIGUSR1, lambda *_: None)
        print("ready")
        signal.pause()
        print("USR1 arrived")
        '
        """
    # Slurm looks twice a minute and rounds down: the signal comes 15 to 45 s after the start.
    job, out = submit(cluster, tmp_path, script, "--time=2", "--signal=B:USR1@75")
    assert cluster.wait(job, "COMPLETED", timeout_s=200)["ExitCode"] == "0:0"
    assert out.read_text() == "ready\nUSR1 arrived\n"


def test_requeue_keeps_the_job_id_and_counts_and_goes_elsewhere(cluster, tmp_path):
    asked = "slurm.requeue('$SLURM_JOB_ID'), slurm.avoid('$SLURM_JOB_ID', ['$SLURMD_NODENAME'], 1)"
    code = f"from retool_mcore.cluster import slurm; print('refusal', {asked})"
    script = f"""\
        echo "job $SLURM_JOB_ID restart ${{SLURM_RESTART_COUNT:-0}}"
        echo "node $SLURMD_NODENAME"
        [[ -n $SLURM_RESTART_COUNT ]] && exit 0
        trap '' TERM
        {sys.executable} -c "{code}"
        sleep 300
        """
    job, out = submit(cluster, tmp_path, script, "--nodes=1")
    assert cluster.wait(job, "COMPLETED", timeout_s=90)["Restarts"] == "1"
    said = [line for line in out.read_text().splitlines() if line.startswith("job ")]
    assert said == [f"job {job} restart 0", f"job {job} restart 1"]
    nodes = [line for line in out.read_text().splitlines() if line.startswith("node ")]
    assert sorted(nodes) == ["node n1", "node n2"], "the second start is not where the first was"
    answers = [line for line in out.read_text().splitlines() if line.startswith("refusal ")]
    assert answers == ["refusal None True"]


@pytest.mark.nightly
def test_at_the_time_limit_the_guard_puts_the_job_back_and_at_scancel_it_does_not(cluster, tmp_path):
    """The job itself does not mind SIGTERM, as one that has much to end."""
    program = f"""
import os, signal, time
from pathlib import Path
from retool_mcore.cluster import job, slurm
from retool_mcore.cluster.guard import guarded
from retool_mcore.cluster.site import Site
signal.signal(signal.SIGTERM, signal.SIG_IGN)
number = slurm.own_id()
print("limit", round(slurm.end_time(number) - float(os.environ["BEGAN"]), -1), flush=True)
with guarded(
    lambda *words: job.step(Site("default"), *words), job=number, pid=os.getpid(), stage="sft", max_attempts=3,
    recorded=0, folder=Path({str(tmp_path)!r}), mark="m", node=os.environ["SLURMD_NODENAME"],
    log={str(tmp_path / "guard.txt")!r},
):
    time.sleep(300)
"""
    (tmp_path / "program.py").write_text(program)
    script = f"""\
        echo "restart ${{SLURM_RESTART_COUNT:-0}}"
        export PYTHONPATH={REPOSITORY} BEGAN=$(date +%s)
        exec {sys.executable} {tmp_path / "program.py"}
        """
    job, out = submit(cluster, tmp_path, script, "--time=1")
    wait_for("restart 1", out, timeout_s=200)
    assert "limit 60.0" in out.read_text() and "DUE TO TIME LIMIT" in out.read_text()
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED", timeout_s=90)
    assert cluster.job(job)["Restarts"] == "1"


def test_scancel_leaves_no_process_on_any_node(cluster, tmp_path):
    script = """\
        srun --ntasks-per-node=1 bash -c 'sleep 300 & echo up-$(hostname); wait' &
        sleep 300
        """
    job, out = submit(cluster, tmp_path, script)
    for node in NODES:
        wait_for(f"up-{node}", out)
        assert any(command == "sleep 300" for command in cluster.processes(node).values())
    cluster.run("scancel", job)
    cluster.wait(job, "CANCELLED")
    deadline = time.monotonic() + 30
    while cluster.orphans():
        assert time.monotonic() < deadline, cluster.orphans()
        time.sleep(0.2)


def test_a_job_outlives_a_slurmd_that_is_killed_and_started_again(cluster, tmp_path):
    script = """\
        srun --ntasks-per-node=1 bash -c 'echo up-$(hostname); until [ -e go ]; do sleep 0.2; done'
        """
    job, out = submit(cluster, tmp_path, script, f"--chdir={tmp_path}")
    for node in NODES:
        wait_for(f"up-{node}", out)
    cluster.kill_slurmd("n2")
    cluster.start_slurmd("n2")
    (tmp_path / "go").touch()
    assert cluster.wait(job, "COMPLETED")["Restarts"] == "0"


def test_an_orphan_is_seen(cluster):
    """The check that every other test relies on."""
    cluster.on("n2", "bash", "-c", "setsid sleep 301 >/dev/null 2>&1 &")
    assert list(cluster.orphans().values()) == ["n2: sleep 301"]
    for pid in cluster.orphans():
        os.kill(pid, signal.SIGKILL)
