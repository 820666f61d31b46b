"""`retool status` over run folders in every state, with Slurm's answers from stand-ins of its commands."""

import io
import json
import os
import shlex
import subprocess
import sys
import time

import pytest
import yaml
from made_chain import make_chain
from rich.console import Console

from retool_mcore.cli import main
from retool_mcore.cluster.slurm import JobState, states
from retool_mcore.cluster.status import print_table, rows
from retool_mcore.errors import UserError
from retool_mcore.runner import processes
from retool_mcore.state import stop

RL = {"critic/score/mean": 0.25, "timing_s/step": 40.0, "perf/total_num_tokens": 8000, "perf/time_per_step": 40.0}
SFT = {"train/loss": 1.5, "train/timing/step_seconds": 2.0, "train/perf/tokens_per_second": 900.0}


@pytest.fixture(autouse=True)
def slurm(tmp_path, monkeypatch):
    """squeue and sacct that answer with the files `queue` and `accounts`; without them they fail."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for program, answer in (("squeue", "queue"), ("sacct", "accounts")):
        (folder / program).write_text(f"#!/bin/bash\ncat {shlex.quote(str(folder / answer))} 2>/dev/null\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def make_stage(run, name, steps=(), attempts=(), total=10, data=None, checkpoint=None):
    """A stage folder: `steps` for each attempt, `attempts` the outcomes of those that ended."""
    folder = run / name
    (folder / "metrics").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.dump({"verl": {"trainer": {"total_training_steps": total}}}))
    for attempt, numbers in enumerate(steps, start=1):
        lines = [json.dumps({"step": step, "data": data or RL}) + "\n" for step in numbers]
        (folder / "metrics" / f"attempt_{attempt:03d}.jsonl").write_text("".join(lines))
    records = [{"attempt": n, "seconds": 1.0, "outcome": outcome} for n, outcome in enumerate(attempts, start=1)]
    (folder / "attempts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "log.txt").write_text("")
    if checkpoint is not None:
        (folder / "checkpoints" / f"global_step_{checkpoint}" / "model" / "huggingface").mkdir(parents=True)
        (folder / "checkpoints" / f"global_step_{checkpoint}" / "COMPLETE").touch()
    return folder


def submitted(run, *jobs):
    (run / "slurm").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"job": job, "stage": s.split("/")[0], "folder": s, "log": "x", "after": a}) for job, s, a in jobs
    ]
    (run / "slurm" / "jobs.jsonl").write_text("\n".join(lines) + "\n")


def row(run, stage, **more):
    return next(row for row in rows(run, **more) if row.stage == stage)


def test_a_complete_stage(tmp_path):
    folder = make_stage(tmp_path / "r", "rl", [[1, 2, 3]], ["complete"], total=3, checkpoint=3)
    age = folder / "checkpoints" / "global_step_3" / "COMPLETE"
    os.utime(age, (1000, 1000))
    found = row(tmp_path / "r", "rl", now_s=1000 + 600)
    assert list(found) == [
        "rl", "complete", "3/3", "reward 0.25", "40.0", "200", "step 3, 10 min ago", "1", "-",
    ]  # fmt: skip


def test_sft_shows_loss_and_its_own_names_of_speed(tmp_path):
    make_stage(tmp_path / "r", "sft", [[1, 2]], ["complete"], total=None, data=SFT)
    found = row(tmp_path / "r", "sft")
    assert (found.step, found.last, found.step_s, found.tokens_per_s) == ("2", "loss 1.5", "2.0", "900")


def test_a_stage_that_runs_here(tmp_path):
    folder = make_stage(tmp_path / "r", "rl", [[1, 2], [3]], ["failed"])
    (folder / ".lock").write_text("status-test-stage-id\n")
    env = {**os.environ, processes.STAGE_ID: "status-test-stage-id"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE) as process:
        deadline = time.monotonic() + 30
        while not processes.find("status-test-stage-id"):  # its environment shows once it was executed
            assert time.monotonic() < deadline
            time.sleep(0.02)
        end = (folder / "metrics" / "attempt_002.jsonl").stat().st_mtime
        found = row(tmp_path / "r", "rl", now_s=end + 61)
        (folder / "heartbeat").mkdir()
        beat = {"phase": "log-probabilities", "beats": 9, "since": end + 20, "time": end + 60, "done": 1, "total": 4}
        (folder / "heartbeat" / "trainer.json").write_text(json.dumps(beat))
        beating = row(tmp_path / "r", "rl", now_s=end + 61)
        (folder / "STOP").touch()
        stopping = row(tmp_path / "r", "rl")
        process.communicate(b"\n")
    assert (found.state, found.step, found.now) == ("running", "3/10", "step 4 since 61 s; 5 min left of the stage")
    assert beating.now == "step 4 since 61 s: log-probabilities 25 %, 2 min left; 5 min left of the stage"
    assert found.attempt == "2, last ended: failed"
    assert stopping.state == "stopping"


def test_a_stage_without_an_end_and_without_processes(tmp_path):
    folder = make_stage(tmp_path / "r", "rl", [[1]])
    (folder / ".lock").write_text("nobody-has-this-id\n")
    for path in (folder / "log.txt", folder / "metrics" / "attempt_001.jsonl"):
        os.utime(path, (5000, 5000))
    found = row(tmp_path / "r", "rl", now_s=5030)
    assert (found.state, found.now) == ("unknown", "killed, or runs on another machine; last output 30 s ago")


def test_a_failed_stage_says_why(tmp_path):
    folder = make_stage(tmp_path / "r", "rl", [[1]], ["failed"])
    (folder / "log.txt").write_text("x\nValueError: the loss is NaN\n")
    found = row(tmp_path / "r", "rl")
    assert found.state == "failed" and found.now.startswith("ValueError: the loss is NaN (see ")


@pytest.mark.parametrize(
    ("queue", "state", "now"),
    [
        ("7|PENDING|Dependency", "queued", "job 7: waits for job 6 to end well"),
        ("7|PENDING|Resources", "queued", "job 7: waits for free nodes (Slurm: Resources)"),
        ("7|PENDING|BeginTime", "queued", "job 7: sent back to the queue, starts again soon (Slurm: BeginTime)"),
        ("7|PENDING|QOSMaxNodes", "queued", "job 7: Slurm: QOSMaxNodes"),
        ("7|COMPLETING|None", "completing", "job 7: Slurm: COMPLETING"),
        ("7|RUNNING|None", "running", "job 7: the job prepares its nodes"),
        ("7|CANCELLED|None", "not started", "job 7: Slurm: CANCELLED, log: x"),
        ("", "not started", "-"),
    ],
)
def test_a_submitted_stage_before_its_first_attempt(queue, state, now, tmp_path, slurm):
    submitted(tmp_path / "r", ("6", "sft", None), ("7", "rl", "6"))
    (slurm / "queue").write_text(queue + "\n")
    found = row(tmp_path / "r", "rl")
    assert (found.state, found.now) == (state, now)


@pytest.mark.parametrize(
    ("job", "state", "now"),
    [
        ("RUNNING", "running", "job 7: step 3 since 50 s; 5 min left of the stage"),
        ("NODE_FAIL", "ended", "job 7: killed before it could say how it ended (Slurm: NODE_FAIL, log: x)"),
        ("REQUEUED", "requeued", "job 7: Slurm: REQUEUED"),
    ],
)
def test_an_attempt_on_other_machines(job, state, now, tmp_path, slurm):
    folder = make_stage(tmp_path / "r", "rl", [[1, 2]])
    os.utime(folder / "metrics" / "attempt_001.jsonl", (5000, 5000))
    submitted(tmp_path / "r", ("5", "rl", None), ("7", "rl", None))
    (slurm / "queue").write_text(f"7|{job}|None\n")
    found = row(tmp_path / "r", "rl", now_s=5050)
    assert (found.state, found.now) == (state, now)


def test_an_attempt_that_has_no_step_yet_is_starting(tmp_path, slurm):
    folder = make_stage(tmp_path / "r", "rl", [[1, 2], []], ["stopped"])
    os.utime(folder / "metrics" / "attempt_002.jsonl", (5000, 5000))
    submitted(tmp_path / "r", ("7", "rl", None))
    (slurm / "queue").write_text("7|RUNNING|None\n")
    found = row(tmp_path / "r", "rl", now_s=5020)
    assert (found.step, found.attempt, found.now) == (
        "2/10",
        "2, last ended: stopped",
        "job 7: starting since 20 s; 5 min left of the stage",
    )


def test_accounting_knows_ended_jobs_and_the_queue_wins(slurm):
    (slurm / "accounts").write_text("6|CANCELLED by 1000\n7|REQUEUED\n8|COMPLETED\n")
    (slurm / "queue").write_text("7|PENDING|BeginTime\n")
    assert states(["6", "7"]) == {"6": JobState("CANCELLED"), "7": JobState("PENDING", "BeginTime")}
    assert states(["9"]) == {} == states([])


def test_without_slurm_the_files_tell(tmp_path, monkeypatch):
    make_stage(tmp_path / "r", "rl", [[1]], ["complete"])
    submitted(tmp_path / "r", ("7", "rl", None))
    monkeypatch.setenv("PATH", "/nowhere")
    assert row(tmp_path / "r", "rl").state == "complete"


def test_half_written_files_do_not_stop_it(tmp_path):
    run = tmp_path / "r"
    folder = make_stage(run, "rl", [[1, 2]], ["failed"])
    for path in (folder / "metrics" / "attempt_001.jsonl", folder / "attempts.jsonl", folder / "config.yaml"):
        text = path.read_text()
        path.write_text(text + text[: len(text) // 3].replace("\n", " ") + '{"')
    (folder / "attempts.jsonl").write_text("3\n" + (folder / "attempts.jsonl").read_text())
    (folder / "log.txt").unlink()
    (folder / "checkpoints" / "global_step_5").mkdir(parents=True)
    submitted(run, ("7", "sft", None))
    (run / "slurm" / "jobs.jsonl").write_text((run / "slurm" / "jobs.jsonl").read_text() + '{"job"')
    (run / "sft").mkdir()
    found = row(run, "rl")
    assert (found.state, found.step, found.checkpoint) == ("failed", "2", "-")
    assert list(row(run, "sft"))[1:-1] == ["not started", "-", "-", "-", "-", "-", "-"]


def test_stages_stand_in_the_order_of_the_pipeline(tmp_path):
    run = tmp_path / "r"
    for name in ("eval/sft", "eval/init", "rl", "sft", "prepare"):
        make_stage(run, name, [[]], ["complete"])
    submitted(run, ("9", "eval/rl", None))
    order = [found.stage for found in rows(run)]
    assert order == ["prepare", "sft", "rl", "eval/init", "eval/sft", "eval/rl"]


def test_the_table_and_the_command(tmp_path, capsys):
    make_stage(tmp_path / "r", "rl", [[1]], ["complete"])
    out = io.StringIO()
    print_table(tmp_path / "r", Console(file=out, width=200))
    assert "reward 0.25" in out.getvalue() and "last checkpoint" in out.getvalue()
    assert main.main(["status", str(tmp_path / "r")]) == 0
    assert "reward 0.25" in capsys.readouterr().out


def test_no_run_is_said(tmp_path, capsys):
    with pytest.raises(UserError, match="no run in"):
        rows(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no stage yet"):
        rows(tmp_path)


def test_what_there_is_to_read_is_named(tmp_path, capsys):
    run = tmp_path / "r"
    make_stage(run, "sft", [[1, 2]], ["complete"], total=None, data=SFT)
    folder = make_stage(run, "rl", [[1]], ["failed"])
    for name in ("stacks/attempt_001", "../slurm/7-ray"):
        (folder / name).mkdir(parents=True)
    for path in (folder / "log.txt", run / "sft" / "log.txt", run / "slurm" / "7-rl.out", run / "slurm" / "7-sft.out"):
        path.touch()
    print_table(run)
    read = [line for line in capsys.readouterr().out.splitlines() if ": read " in line]
    names = ["rl/log.txt", "rl/stacks/attempt_001", "slurm/7-rl.out", "slurm/7-ray"]
    assert read == ["rl: read " + ", ".join(f"{run}/{name}" for name in names)]


def test_a_run_that_trains_is_asked_to_stop_and_says_what_follows(tmp_path, slurm, capsys):
    run = tmp_path / "r"
    make_stage(run, "sft", steps=[[1, 2]], attempts=["complete"])
    rl = make_stage(run, "rl", steps=[[1, 2]])
    submitted(run, ("7", "rl", None))
    (slurm / "queue").write_text("7|RUNNING|None\n")
    assert main.main(["stop", str(run)]) == 0
    assert "rl: it ends its step, saves and stops" in capsys.readouterr().out and stop.requested(rl)
    assert next(row for row in rows(run) if row.stage == "rl").now.startswith(
        "job 7: ends its step and saves, then stops"
    )
    stop.clear(rl)
    stop.request(rl)
    assert "then goes back to the queue" in next(row for row in rows(run) if row.stage == "rl").now


def test_a_run_that_does_not_train_is_not_asked_to_stop(tmp_path, slurm, capsys):
    run = tmp_path / "r"
    make_stage(run, "rl", steps=[[1, 2]], attempts=["failed"])
    assert main.main(["stop", str(run)]) == 2
    assert "nothing of" in capsys.readouterr().err and not stop.requested(run / "rl")


def test_a_chain_of_starts_is_listed_with_what_it_lost_and_when_it_ends(tmp_path, slurm):
    """Also where a second submission, which was refused, is the newest job of the stage."""
    run = tmp_path / "r"
    make_chain(run / "rl")
    submitted(run, ("7", "rl", None), ("8", "rl", None))
    (slurm / "queue").write_text("7|RUNNING|None\n8|FAILED|NonZeroExitCode\n")
    out = io.StringIO()
    print_table(run, Console(file=out, width=200))
    text = out.getvalue()
    assert "job 7: step 8 since" in text and "job 8" not in text
    shown = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if ", start " in line]
    assert [[cells[place] for place in (0, 1, 2, 4, 5, 6)] for cells in shown[:3]] == [
        ["1", "7, start 1", "n1, n2", "4 h", "1-4", "time limit"],
        ["2", "7, start 2", "n1, n2", "3 h", "5-6", "fault: rl failed: NCCL error"],
        ["3", "7, start 3", "n1, n2", "6 min", "-", "fault: node n2, GPUs: 7, 8 needed"],
    ]
    assert shown[3][2] == "n1, n3" and shown[3][6] == "no end yet"
    assert "rl: 4 starts of job 7; lost to faults: 4.0 h; keeps off n2; next save in 0 s; complete about " in text


def test_a_stage_that_was_started_once_has_no_list_of_starts(tmp_path, capsys):
    make_stage(tmp_path / "r", "rl", [[1, 2]], ["complete"])
    print_table(tmp_path / "r")
    assert "starts" not in capsys.readouterr().out
