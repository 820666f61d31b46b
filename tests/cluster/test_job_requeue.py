"""The way back to the queue, with small programs in the place of Slurm's commands."""

import os
import signal
import time

import pytest

from retool_mcore.cluster import slurm
from retool_mcore.cluster.job import (
    Allocation,
    back_to_queue,
    read_allocation,
)
from retool_mcore.cluster.job_signals import Signals
from retool_mcore.state import chain, stop

pytestmark = pytest.mark.usefixtures("signal_handlers")
TWO = Allocation(7, 1, ("n1", "n2"), 8)
LIMIT, SCANCEL = "COMPLETING|TimeLimit", "COMPLETING|None"


def test_the_job_goes_back_to_the_queue(program, tmp_path, capsys):
    program("scontrol", f"echo $* > {tmp_path}/said")
    assert back_to_queue(TWO, Signals("rl", tmp_path), chain.FAULT, "rl: stopped after step 3", 75) == 0
    assert (tmp_path / "said").read_text() == "requeue 7\n"
    assert "rl: stopped after step 3; job 7 is back in the queue." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("job_is", "up", "keeps_off"),
    [
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=(null)", "n1 n2 n3", "ExcNodeList=n2"),
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=n4", "n1 n2 n3 n4", "ExcNodeList=n2,n4"),
        ("Partition=gpu ReqNodeList=(null) ExcNodeList=n3", "n1 n2 n3", None),  # two are needed
        ("Partition=gpu ReqNodeList=n[1-2] ExcNodeList=(null)", "n1 n2 n3", None),
    ],
)
def test_back_in_the_queue_it_keeps_off_bad_nodes_where_others_are_enough(
    program, tmp_path, capsys, job_is, up, keeps_off
):
    answers = f"job) echo '{job_is}';; hostnames) echo $3;;"
    program("scontrol", f'echo $* >> {tmp_path}/said; case "$2" in {answers} esac')
    program("sinfo", f"printf '%s\\n' {up}")
    assert back_to_queue(TWO, Signals("rl", tmp_path), chain.FAULT, "rl: n2 is silent", 1, ["n2"]) == 0
    updates = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("update")]
    assert updates == ([f"update JobId=7 {keeps_off}"] if keeps_off else [])
    assert ("keeps off n2" in capsys.readouterr().out) is bool(keeps_off)


def test_it_keeps_off_them_although_slurms_signal_ends_the_first_that_asks(program, tmp_path, capsys):
    killed = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; kill -TERM $$; }}"
    told = "echo 'Partition=gpu ReqNodeList=(null) ExcNodeList=(null)'"
    program("scontrol", f'case "$2" in job) {told};; esac')
    program("sinfo", f"{killed}; printf '%s\\n' n1 n2 n3")
    assert back_to_queue(TWO, Signals("rl", tmp_path), chain.FAULT, "rl: n2 is silent", 1, ["n2"]) == 0
    assert "keeps off n2" in capsys.readouterr().out


def test_a_job_that_slurm_does_not_requeue_keeps_its_exit_code(program, tmp_path, capsys):
    program("scontrol", "echo requeue disabled >&2; exit 1")
    assert back_to_queue(TWO, Signals("rl", tmp_path), chain.FAULT, "rl: stopped after step 3", 75) == 75
    assert "requeue disabled" in capsys.readouterr().out


@pytest.mark.parametrize(("restarts", "code"), [(2, 0), (99, 75)])
def test_a_controller_that_restarts_is_asked_again_for_the_requeue(
    program, tmp_path, monkeypatch, capsys, restarts, code
):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.05)
    monkeypatch.setattr(slurm.requeue, "__defaults__", (1.0,))
    count = f"echo x >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt {restarts} ]"
    program("scontrol", f'{count} || {{ echo "Unexpected message received for job 7" >&2; exit 1; }}')
    assert back_to_queue(TWO, Signals("rl", tmp_path), chain.FAULT, "rl: stopped after step 6", 75) == code
    said = capsys.readouterr().out
    assert ("is back in the queue" in said) is (code == 0) and ("Unexpected message" in said) is (code == 75)


UNREACHABLE = 'echo "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" >&2; exit 1'


def test_no_answer_at_the_time_limit_is_not_no(program, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.05)
    once = f"[ -e {tmp_path}/asked ] || {{ touch {tmp_path}/asked; {UNREACHABLE}; }}"
    program("squeue", f"{once}; echo '7|COMPLETING|TimeLimit'")
    assert slurm.timed_out("7")
    program("squeue", UNREACHABLE)
    for left, timed_out in ((5.0, True), (3600.0, False)):
        stop.write_job_end(tmp_path / "end", time.time() + left)
        monkeypatch.setenv(stop.JOB_END, str(tmp_path / "end"))
        assert slurm.timed_out("7", patience_s=0.2) is timed_out
    program("squeue", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1')
    assert not slurm.timed_out("7"), "that is an answer: Slurm no longer knows the job"


def test_scancel_during_the_end_of_a_stage_is_not_undone(program, tmp_path, capsys):
    program("scontrol", f"echo $* >> {tmp_path}/said")
    for state, code in ((SCANCEL, 143), (LIMIT, 0)):
        program("squeue", f"echo '7|{state}'")
        signals = Signals("rl", tmp_path)
        signals.ignore()
        os.kill(os.getpid(), signal.SIGTERM)
        assert back_to_queue(TWO, signals, chain.FAULT, "rl: to be started again", 1) == code
        assert ("was cancelled meanwhile" in capsys.readouterr().out) is (code == 143)
    requeues = [line for line in (tmp_path / "said").read_text().splitlines() if line.startswith("requeue")]
    assert requeues == ["requeue 7"]


def test_a_task_of_an_array_asks_and_requeues_itself_alone(program, tmp_path):
    """`scontrol requeue 25` means every task of array 25, and squeue names a task 25_1."""
    env = {"SLURM_JOB_ID": "25", "SLURM_ARRAY_JOB_ID": "25", "SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_NODELIST": "n1"}
    program("scontrol", f'[ "$2" = hostnames ] && echo n1; echo $* >> {tmp_path}/said')
    program("squeue", "printf '%s\\n' '25_1|COMPLETING|TimeLimit' '25_2|RUNNING|None'")
    allocation = read_allocation(env | {"SLURM_GPUS_ON_NODE": "8"})
    assert allocation.slurm_id == "25_1" and slurm.timed_out(allocation.slurm_id)
    assert slurm.states(["25_1", "25_2"])["25_2"].state == "RUNNING"
    assert back_to_queue(allocation, Signals("rl", tmp_path), chain.FAULT, "rl: stopped after step 3", 75) == 0
    assert (tmp_path / "said").read_text().splitlines()[-1] == "requeue 25_1"
