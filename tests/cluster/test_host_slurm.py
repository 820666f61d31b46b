"""slurm/host_slurm.py: Slurm's commands in a container, run on the host. The container is a program like any other; the
host's srun and scontrol are stand-ins."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RELAY = Path(__file__).parents[2] / "slurm" / "host_slurm.py"
SRUN = """\
case $1 in
    say) echo "out $2 $A $SLURM_STEP_ID $PWD"; echo err >&2; exit 7 ;;
    wait) trap 'echo heard; exit 9' TERM; echo $$ >"$2"; for _ in {1..600}; do sleep 0.05; done ;;
    late) sleep 1; touch "$2" ;;
esac
"""


@pytest.fixture
def relay(tmp_path):
    """Starts a program "in the container" beside the relay; its PATH has no srun."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(f"#!/bin/bash\n{SRUN}")
    (tmp_path / "bin" / "srun").chmod(0o755)
    (tmp_path / "folder").mkdir()

    def start(program, **env):
        inside = ["env", "PATH=/usr/bin:/bin", "SLURM_STEP_ID=inner", "bash", "-c", program]
        env = {
            **os.environ,
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "RETOOL_HOST_SLURM": f"{tmp_path}/folder",
            **env,
        }
        command = [sys.executable, RELAY, *inside]
        return subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )

    return start


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_exit_code_folder_and_environment_are_the_callers(relay, tmp_path):
    program = 'cd /usr; export A=a; $RETOOL_HOST_SLURM/srun say "x y"; echo "code $?"; exit 3'
    process = relay(program, SLURM_STEP_ID="outer")
    out, err = process.communicate(timeout=60)
    # PATH and what Slurm says of the step are the host's.
    assert out == "out x y a outer /usr\ncode 7\n" and err == "err\n" and process.returncode == 3
    assert not (tmp_path / "folder").exists()


def test_many_at_once(relay):
    program = "for i in {1..20}; do $RETOOL_HOST_SLURM/srun say $i & done; wait"
    out, _ = relay(program, SLURM_STEP_ID="", A="").communicate(timeout=60)
    assert sorted(int(line.split()[1]) for line in out.splitlines()) == [*range(1, 21)]


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_reaches_the_program(relay, tmp_path, signum):
    name = signum.name.removeprefix("SIG")
    process = relay(f"trap 'echo heard {name}; exit 75' {name}; touch up; for _ in {{1..600}}; do sleep 0.05; done")
    wait_for((tmp_path / "up").exists)
    process.send_signal(signum)
    assert process.communicate(timeout=60)[0] == f"heard {name}\n" and process.returncode == 75


@pytest.mark.parametrize(("how", "code"), [("TERM", "9"), ("KILL", "137")])
def test_a_caller_that_is_ended_ends_the_command(relay, tmp_path, how, code):
    """By SIGTERM the command's own exit code comes back; killed, the caller leaves nothing running."""
    program = f"""$RETOOL_HOST_SLURM/srun wait {tmp_path}/pid & caller=$!
until [[ -s {tmp_path}/pid ]]; do sleep 0.02; done; kill -{how} $caller; wait $caller; echo code $?"""
    out, _ = relay(program).communicate(timeout=60)
    assert sorted(out.split("\n")[:-1]) == [f"code {code}", "heard"]


def test_what_a_killed_job_leaves_may_end(relay, tmp_path):
    """So the guard, a step that outlives the job's process, still asks for the requeue."""
    process = relay(f"setsid $RETOOL_HOST_SLURM/srun late {tmp_path}/done >/dev/null 2>&1 & sleep 0.5; kill -9 $$")
    process.communicate(timeout=60)
    assert process.returncode == 137 and (tmp_path / "done").exists()


def test_nothing_but_slurms_commands_is_run(relay):
    program = """cd $RETOOL_HOST_SLURM; python3 -c '
import sys
sys.path.insert(0, ".")
import host_slurm
sys.argv = ["./srun"]
print(host_slurm.ask("id", []))'"""
    out, err = relay(program).communicate(timeout=60)
    assert out == "127\n" and "no command of Slurm: id" in err
