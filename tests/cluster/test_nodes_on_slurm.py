"""The node check and the all-reduce check on the real Slurm: all well, and faults of one node."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from retool_mcore.cluster.nccl_check import nccl_command
from retool_mcore.config import compose

REPOSITORY = Path(__file__).parents[2]
PORT = 23456

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CHECK = """\
import sys
from pathlib import Path
from omegaconf import OmegaConf
from retool_mcore.cluster.node_check import check_nodes
from retool_mcore.errors import UserError
path = Path(sys.argv[1])
try:
    check_nodes(["n1", "n2"], OmegaConf.load(path), path, ports=[int(sys.argv[2])], sandbox=False)
except UserError as error:
    print("refused:", error, flush=True)
"""

# n1 answers, n2 works on without an end; the job outlives the check.
HANG = """\
import time
from retool_mcore.cluster.node_check import gather, plain_srun
answer = '''case $SLURMD_NODENAME in n1) echo '{"node": "n1"}';; *) exec sleep 600;; esac'''
print(gather(["n1", "n2"], ["bash", "-c", answer], plain_srun, deadline_s=5.0)[1], flush=True)
time.sleep(100)
"""


def submit(cluster, folder, *command):
    """Submits `command` over both nodes, run on the first; its job id and the file of its output."""
    out = folder / "out.txt"
    script = folder / "job.sh"
    script.write_text(f'#!/bin/bash\ncd {REPOSITORY}\n"$@"\n')
    fixed = ("--parsable", "--nodes=2", "--ntasks-per-node=1", "--exclusive", f"--output={out}")
    return cluster.run("sbatch", *fixed, str(script), *command).strip(), out


def done(cluster, folder, *command):
    """Output of `command`, run as a job to its end."""
    job, out = submit(cluster, folder, *command)
    cluster.wait(job, "COMPLETED", "FAILED", timeout_s=270)
    return out.read_text()


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


@pytest.fixture
def config_path(tmp_path):
    path = tmp_path / "config.yaml"
    OmegaConf.save(compose("doctor", [f"runs_dir={tmp_path / 'runs'}"]), path)
    return path


def test_two_nodes_answer_and_a_fault_of_one_is_named(cluster, tmp_path, config_path):
    check = [sys.executable, "-c", CHECK, str(config_path), str(PORT)]
    output = done(cluster, tmp_path, *check)
    # A small test machine may be refused for its memory or disk, but both nodes answered for themselves.
    assert "all fine" in output or ("refused" in output and "answer:" not in output), output

    runs = tmp_path / "runs"
    runs.mkdir(exist_ok=True)
    cluster.on("n2", "mount", "-t", "tmpfs", "tmpfs", str(runs))
    program = f"import socket, time; s = socket.create_server(('', {PORT})); print('up', flush=True); time.sleep(200)"
    inside = ["nsenter", "--target", str(cluster.inits["n2"]), "--all", sys.executable, "-c", program]
    server = subprocess.Popen(inside, stdout=subprocess.PIPE, start_new_session=True)
    try:
        assert server.stdout.readline() == b"up\n"
        output = done(cluster, tmp_path, *check)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
        cluster.on("n2", "umount", str(runs))
    assert "refused: node n2, run_dir shared: a file that the first node wrote is not there" in output
    assert f"{PORT} in use" in output


def test_the_doctor_of_an_allocation_checks_its_nodes_and_lets_them_add_up(cluster, tmp_path):
    retool = str(Path(sys.executable).with_name("retool"))
    output = done(cluster, tmp_path, retool, "doctor", "parallel=cpu-2nodes", f"runs_dir={tmp_path / 'runs'}")
    assert re.search(r"nodes: n1, n2: \d+ checks, all fine\.", output), output
    assert re.search(r"nccl_check: between n1 and n2: \d+\.\d+ GB/s", output), output


def test_a_node_that_does_not_answer_is_named_and_its_task_ended(cluster, tmp_path):
    job, out = submit(cluster, tmp_path, sys.executable, "-c", HANG)
    try:
        wait_until(lambda: out.is_file() and "no_answer" in out.read_text())
        assert "'node': 'n2', 'no_answer': 'no answer within 5 s'" in out.read_text()
        wait_until(lambda: not any("sleep 600" in command for command in cluster.processes("n2").values()))
        assert cluster.job(job)["JobState"] == "RUNNING"
    finally:
        cluster.run("scancel", job)


def all_reduce(cluster, folder, deadline_s):
    """Submits the check of two nodes with one rank each; its job id and the file of its output."""
    address = cluster.on("n1", "hostname", "-I").split()[0]
    config = {"parallel": {"device": "cpu", "nodes": 2, "gpus_per_node": 1}}
    command = nccl_command(config, address=address, port=PORT, deadline_s=deadline_s)
    return submit(cluster, folder, "srun", "--label", *command)


def test_ranks_of_two_nodes_add_up(cluster, tmp_path):
    job, out = all_reduce(cluster, tmp_path, 100)
    cluster.wait(job, "COMPLETED", "FAILED", timeout_s=200)
    assert "between n1 and n2: " in out.read_text() and cluster.job(job)["ExitCode"] == "0:0", out.read_text()


def test_a_rank_that_stands_still_ends_the_check_with_its_node_named(cluster, tmp_path):
    job, out = all_reduce(cluster, tmp_path, 30)

    def rank():
        # The worker has the module as its program; torchrun has it as an argument of its own.
        found = cluster.processes("n2").items()
        return [pid for pid, command in found if "retool_mcore.cluster.nccl_check" in command and "run" not in command]

    (pid, *_) = wait_until(rank)
    time.sleep(0.5)
    os.kill(pid, signal.SIGSTOP)
    cluster.wait(job, "FAILED", "COMPLETED", timeout_s=200)
    text = out.read_text()
    assert cluster.job(job)["ExitCode"] != "0:0", text
    assert re.search(r"rank 0 on n1 (is stuck: between n1 and n2|did not meet the others)", text), text
