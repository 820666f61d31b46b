"""Stages as real processes: small programs stand in for the trainers."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from retool_mcore.errors import UserError
from retool_mcore.runner import launch as launching
from retool_mcore.runner import processes
from retool_mcore.runner.launch import StageFailed, launch, run_attempt, stage_command, stage_dir

pytestmark = pytest.mark.usefixtures("one_start_of_each_sandbox")

PATIENCE_S = 60.0


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a Python program as the stage "probe" of a run in tmp_path; returns the stage's folder."""

    def start(program: str, **changes) -> Path:
        config = OmegaConf.create({"run_dir": str(tmp_path), "parallel": {"device": "cpu", "nodes": 1}, **changes})
        monkeypatch.setattr(launching, "stage_command", lambda *_: [sys.executable, "-c", program])
        run_attempt("probe", config)
        return stage_dir("probe", config)

    return start


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.05)


def attempts(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]


def test_a_stage_that_ends_well(run, capsys):
    folder = run(
        "import os; print('hello', *map(os.environ.get, ('VERL_FILE_LOGGER_PATH', 'TORCH_FR_DUMP_TEMP_FILE')))"
    )
    log = (folder / "log.txt").read_text()
    assert "=== attempt 001" in log and f"hello {folder}/metrics/attempt_001.jsonl {folder}/stacks/nccl_rank_" in log
    assert (folder / "stacks").is_dir(), "PyTorch makes no folder for its dump"
    assert [(entry["attempt"], entry["outcome"]) for entry in attempts(folder)] == [(1, "complete")]
    assert (folder / "COMPLETE").exists() and (folder / "config.yaml").exists()
    assert f"tensorboard --logdir {folder.parent}" in capsys.readouterr().out


def test_a_complete_stage_is_not_run_again(run, capsys):
    folder = run("pass", seed=1)
    config = OmegaConf.load(folder / "config.yaml")
    launch("probe", config)
    assert "complete already" in capsys.readouterr().out
    assert len(attempts(folder)) == 1


def test_another_configuration_runs_again_and_the_old_one_is_kept(run):
    run("pass", seed=1)
    folder = run("pass", seed=2)
    assert OmegaConf.load(folder / "config.yaml").seed == 2
    assert OmegaConf.load(folder / "config_attempt_001.yaml").seed == 1
    assert [entry["attempt"] for entry in attempts(folder)] == [1, 2]


def test_a_failure_names_the_exception_and_the_log(run, tmp_path):
    with pytest.raises(StageFailed) as error:
        run("print('working'); raise ValueError('heads 5 do not divide')")
    folder = tmp_path / "probe"
    assert str(error.value) == (
        f"probe failed (exit code 1): ValueError: heads 5 do not divide\nThe whole log: {folder / 'log.txt'}"
    )
    assert not (folder / "COMPLETE").exists()
    assert attempts(folder)[0]["outcome"] == "failed"


def test_a_failed_start_takes_the_mark_of_completion_away(run, tmp_path):
    run("pass", seed=1)
    with pytest.raises(StageFailed):
        run("raise SystemExit(3)", seed=2)
    assert not (tmp_path / "probe" / "COMPLETE").exists()


def test_only_this_attempts_log_is_searched(run):
    with pytest.raises(StageFailed, match="first"):
        run("raise ValueError('first')")
    with pytest.raises(StageFailed, match="exit code 3.*: second"):
        run("print('second'); raise SystemExit(3)")


def test_a_users_mistake_found_by_the_stage(run):
    with pytest.raises(UserError, match="^no such file: x$"):
        run("from retool_mcore.errors import UserError; raise UserError('no such file: x')")


@pytest.mark.parametrize("asked", [True, False])
def test_a_request_to_stop_counts_when_this_attempt_was_meant(tmp_path, asked):
    config = OmegaConf.create({"run_dir": str(tmp_path), "parallel": {"device": "cpu", "nodes": 1}})
    folder = stage_dir("probe", config)
    folder.mkdir()
    (folder / "STOP").touch()  # of an earlier attempt, or of this one just before it began
    program = "import os, sys; open('seen', 'w').write(str(os.path.exists('STOP')))"
    command = [sys.executable, "-c", f"import os; os.chdir({str(folder)!r}); {program}"]
    run_attempt("probe", config, lambda _: command, stop_asked=lambda: asked)
    assert (folder / "seen").read_text() == str(asked)


def test_a_killed_stage_says_so(run):
    with pytest.raises(
        StageFailed, match=r"\(python\S*, its first process, was killed by SIGKILL, often for lack of memory\)\n"
    ):
        run("import os; print('x', flush=True); os.kill(os.getpid(), 9)")
    with pytest.raises(StageFailed, match=r"was killed by SIGSEGV\): it printed last: x\n"):
        run("import os; print('x', flush=True); os.kill(os.getpid(), 11)")


# Starts two children in sessions of their own that ignore signals, one without the mark in its environment.
STUBBORN = """
import os, pathlib, subprocess, sys, time
child = "import signal, time; [signal.signal(s, signal.SIG_IGN) for s in (2, 15)]; print(flush=True); time.sleep(600)"
folder, linger_s = pathlib.Path(sys.argv[1]), float(sys.argv[2])
children = [
    subprocess.Popen([sys.executable, "-c", child], start_new_session=True, env=env, stdout=subprocess.PIPE)
    for env in (None, {})
]
for process in children:
    process.stdout.readline()
(folder / "part").write_text(" ".join(str(pid) for pid in [os.getpid(), *(process.pid for process in children)]))
(folder / "part").rename(folder / "pids")
time.sleep(linger_s)
"""
LAUNCHER = """
import sys
from omegaconf import OmegaConf
from retool_mcore.runner import launch, processes
stop = processes.stop
processes.stop = lambda *arguments, **options: stop(*arguments, **(options | {"grace_s": 1.0}))
launch.LOOK_S = 0.5
launch.stage_command = lambda *_: [sys.executable, "-c", sys.argv[1], sys.argv[2], sys.argv[3]]
parallel = {"device": "cpu", "nodes": 1}
try:
    launch.run_attempt("probe", OmegaConf.create({"run_dir": sys.argv[2], "parallel": parallel}))
except launch.Stopped as stopped:
    sys.exit(128 + stopped.signum)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def start_stubborn(folder: Path, linger_s: float) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", LAUNCHER, STUBBORN, str(folder), str(linger_s)])


def survivors(folder: Path) -> list[int]:
    return [pid for pid in map(int, (folder / "pids").read_text().split()) if alive(pid)]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything(tmp_path, signum):
    launcher = start_stubborn(tmp_path, 600.0)
    wait_for(tmp_path / "pids")
    launcher.send_signal(signum)
    assert launcher.wait(timeout=PATIENCE_S) == 128 + signum
    assert survivors(tmp_path) == []
    assert attempts(tmp_path / "probe")[0]["outcome"] == "stopped"


def test_children_do_not_outlive_a_stage_that_ends_well(tmp_path):
    # It lingers so that the launcher, which looks for children every LOOK_S, has seen the one without the mark.
    launcher = start_stubborn(tmp_path, 3.0)
    assert launcher.wait(timeout=PATIENCE_S) == 0
    assert survivors(tmp_path) == []
    assert (tmp_path / "probe" / "COMPLETE").exists()


def test_a_killed_launcher_takes_the_stage_with_it(tmp_path):
    launcher = start_stubborn(tmp_path, 600.0)
    wait_for(tmp_path / "pids")
    stage, marked, _ = map(int, (tmp_path / "pids").read_text().split())
    launcher.kill()
    launcher.wait()
    deadline = time.monotonic() + PATIENCE_S
    while alive(stage):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for pid in survivors(tmp_path):  # its children are the next start's to end: see the test of leftovers
        os.kill(pid, signal.SIGKILL)


def test_a_second_start_while_the_stage_runs_is_refused(run, tmp_path):
    (tmp_path / "probe").mkdir()
    with (tmp_path / "probe" / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="runs already"):
            run("pass")


def test_a_file_system_without_locks_is_told_and_used(run, tmp_path, monkeypatch, capsys):
    def unknown(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unknown)
    run("pass")
    assert "(No locks available): do not start it twice at a time." in capsys.readouterr().out
    assert (tmp_path / "probe" / "COMPLETE").exists()


def test_the_leftovers_of_a_killed_launcher_are_ended(run, tmp_path):
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / ".lock").write_text("0123abcd")
    env = os.environ | {processes.STAGE_ID: "0123abcd"}
    leftover = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env=env)
    run("pass")
    assert leftover.wait(timeout=PATIENCE_S) == -signal.SIGTERM


def config_of(stage: str, **changes):
    parallel = {"nodes": 1, "gpus_per_node": 2, "device": "cpu"} | changes.pop("parallel", {})
    return OmegaConf.create({"run_dir": "/r", "parallel": parallel, "policy": "rl", "label": None} | changes)


def test_commands():
    path = Path("/r/config.yaml")
    assert stage_command("rl", config_of("rl"), path)[1:] == ["-m", "retool_mcore.train.rl", "/r/config.yaml"]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--tee=3"]
    torchrun += ["--log-dir=/r/ranks/node0"]
    assert stage_command("sft", config_of("sft"), path)[1:] == [*torchrun, "-m", "retool_mcore.train.sft", str(path)]
    assert stage_command("prepare", config_of("prepare"), path) == []


def test_the_command_on_several_nodes():
    config = config_of("sft", parallel={"nodes": 2, "gpus_per_node": 8})
    env = {"NODE_RANK": "1", "MASTER_ADDR": "node-0", "MASTER_PORT": "2"}
    command = stage_command("sft", config, Path("c.yaml"), env)
    assert "--nnodes=2" in command and "--node_rank=1" in command and "--master_addr=node-0" in command
    assert "--master_port=2" in command and "--log-dir=ranks/node1" in command
    assert "--master_addr=$MASTER_ADDR" in stage_command("sft", config, Path("c.yaml"), {})


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "/r/eval/rl"),
        ({"label": "night"}, "/r/eval/night"),
        ({"policy": "/models/Qwen2.5-7B"}, "/r/eval/Qwen2.5-7B"),
    ],
)
def test_an_evaluation_has_a_folder_for_each_policy(changes, folder):
    assert stage_dir("eval", config_of("eval", **changes)) == Path(folder)
    assert stage_dir("rl", config_of("rl", **changes)) == Path("/r/rl")


ALARMED = """
import sys
from pathlib import Path
from retool_mcore.state import alarms
folder = Path({folder!r})
if len(list((folder / "metrics").iterdir())) < 3:
    alarms.honour(folder, alarms.Ended({answer!r}, "alarm: nan at step 6"))
    sys.exit(alarms.EXIT_CODE)
"""


def alarmed(monkeypatch, tmp_path, answer: str) -> Path:
    program = ALARMED.format(folder=str(tmp_path / "probe"), answer=answer)
    monkeypatch.setattr(launching, "stage_command", lambda *_: [sys.executable, "-c", program])
    monkeypatch.setattr("retool_mcore.preflight.run.check", lambda *_: None)
    launch("probe", OmegaConf.create({"run_dir": str(tmp_path), "parallel": {"device": "cpu", "nodes": 1}}))
    return tmp_path / "probe"


def test_a_stage_that_goes_back_is_started_again_at_once(monkeypatch, tmp_path, capsys):
    folder = alarmed(monkeypatch, tmp_path, "back")
    assert [entry["outcome"] for entry in attempts(folder)] == ["went back", "went back", "complete"]
    assert "probe: alarm: nan at step 6; it goes on from the last checkpoint" in capsys.readouterr().out


def test_a_stage_that_an_alarm_stops_says_which(monkeypatch, tmp_path):
    with pytest.raises(launching.AlarmStop, match="probe stopped: alarm: nan at step 6"):
        alarmed(monkeypatch, tmp_path, "stop")
    assert [entry["outcome"] for entry in attempts(tmp_path / "probe")] == ["failed"]
