"""The whole check of the nodes, with this machine as every node, through a stand-in for srun.

The stand-in runs the command once a node on this machine and labels its lines, as `srun --label` does.
"""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from retool_mcore.cli import doctor
from retool_mcore.cluster import network, node_check
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine

SRUN = """\
import os, signal, subprocess, sys
arguments = sys.argv[1:]
nodes = next(a for a in arguments if a.startswith("--nodelist=")).partition("=")[2].split(",")
command = arguments[arguments.index(PYTHON):]
children = []
def end(*_):
    for child in children:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
for task, node in enumerate(nodes):
    env = os.environ | {"SLURMD_NODENAME": node}
    prefix = ["sh", "-c", f'"$@" 2>&1 | sed -u "s/^/{task}: /"', "sh"]
    children.append(subprocess.Popen([*prefix, *(BROKEN.get(node) or command)], env=env, start_new_session=True))
for child in children:
    child.wait()
"""


def stand_in(tmp_path, broken=None):
    """The command of an srun whose nodes in `broken` run another command than the one asked for."""
    path = tmp_path / "srun.py"
    path.write_text(f"PYTHON, BROKEN = {sys.executable!r}, {broken or {}!r}\n{SRUN}")
    return prefixed(sys.executable, str(path))


def prefixed(*prefix):
    return lambda options, command: [*prefix, *options, *command]


@pytest.fixture
def config(tmp_path):
    return compose("doctor", [f"runs_dir={tmp_path / 'runs'}"])


@pytest.fixture
def config_path(config, tmp_path):
    path = tmp_path / "config.yaml"
    OmegaConf.save(config, path)
    return path


@pytest.fixture
def roomy(monkeypatch):
    """A small machine is as good as a large one for what is tested here."""
    for name in ("MIN_CPU_MEMORY_BYTES", "MIN_DISK_BYTES", "MIN_SHM_BYTES", "MIN_OPEN_FILES"):
        monkeypatch.setattr(machine, name, 1)
    monkeypatch.setattr("retool_mcore.cluster.node_verdicts.MIN_SCRATCH_BYTES", {"cpu": 1, "cuda": 1})


def test_one_node_prints_one_json_line(config_path):
    given = json.dumps({"config": str(config_path), "sandbox": False})
    command = [sys.executable, "-m", "retool_mcore.cluster.node_check", given]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"SLURMD_NODENAME": "n9"})
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["node"] == "n9" and not found["errors"] and "sandbox" not in found
    assert found["packages"]["verl"] == "0.9.1" and found["clock_started"] <= found["clock_ended"]


def test_this_machine_passes_as_two_nodes(config, config_path, tmp_path, roomy):
    console = Console(record=True, width=200, file=io.StringIO())
    node_check.check_nodes(["n1", "n2"], config, config_path, stand_in(tmp_path), console=console)
    text = console.export_text()
    assert "nodes: n1, n2: " in text and "all fine" in text
    assert list((Path(config.run_dir) / "slurm").iterdir()) == []  # the token is gone


def test_a_node_that_dies_is_named_with_its_last_words(config, config_path, tmp_path, roomy):
    srun = stand_in(tmp_path, {"n2": ["sh", "-c", "echo 'No module named retool_mcore'; exit 1"]})
    with pytest.raises(UserError, match="node n2, answer: No module named retool_mcore: look at it"):
        node_check.check_nodes(["n1", "n2"], config, config_path, srun, sandbox=False)


def test_a_node_that_never_answers_is_named_at_the_deadline(tmp_path):
    srun = stand_in(tmp_path, {"n2": ["sleep", "600"]})
    command = [sys.executable, "-c", 'print(\'{"node": "n1"}\')']
    reports = node_check.gather(["n1", "n2"], command, srun, deadline_s=3.0)
    assert reports[0]["received"] >= reports[0]["launched"]
    assert reports[1] == {"node": "n2", "no_answer": "no answer within 3 s"}


def test_what_srun_itself_says_is_the_reason_when_no_task_started(tmp_path):
    srun = prefixed("sh", "-c", "echo 'srun: error: Unable to create step: Invalid partition' >&2; exit 1")
    (found,) = node_check.gather(["n1"], ["x"], srun, deadline_s=30.0)
    assert "Unable to create step" in found["no_answer"]


def test_the_error_of_srun_that_names_the_node_is_its_reason(tmp_path):
    error = "srun: error: Task launch for StepId=1.0 failed on node n{}: Socket timed out"
    lines = [error.format(10), error.format(1), "srun: error: Timed out waiting for job step to complete"]
    srun = prefixed("sh", "-c", f"printf '%s\\n' '{lines[0]}' '{lines[1]}' '{lines[2]}' >&2; exit 1")
    reports = node_check.gather(["n1", "n2"], ["x"], srun, deadline_s=30.0)
    assert [report["no_answer"] for report in reports] == [lines[1], lines[0]]


def test_the_steps_options_stand_before_the_container_and_the_command(tmp_path):
    seen = []

    def srun(options, command):
        seen.append((options, command))
        return ["true"]

    node_check.gather(["n1", "n2"], ["look"], srun, deadline_s=30.0)
    ((options, command),) = seen
    assert {"--nodes=2", "--nodelist=n1,n2", "--label"} < set(options) and command == ["look"]
    assert {"--overlap", "--mem=0"} < set(node_check.plain_srun(options, command))


def test_a_missing_srun_is_told(config, config_path, tmp_path):
    with pytest.raises(UserError, match="inside a Slurm allocation"):
        node_check.check_nodes(["n1"], config, config_path, prefixed(str(tmp_path / "srun")))


def test_a_configuration_that_a_node_does_not_see_is_told(config, tmp_path):
    with pytest.raises(UserError, match="node n1, answer: the configuration cannot be read"):
        node_check.check_nodes(["n1"], config, tmp_path / "elsewhere.yaml", stand_in(tmp_path))


def test_the_doctor_looks_at_all_nodes_of_an_allocation(config, tmp_path, monkeypatch, roomy):
    tools = tmp_path / "bin"
    tools.mkdir()
    interpreter, script = stand_in(tmp_path, {"n2": ["false"]})([], [])
    for name, line in (("srun", f'exec {interpreter} {script} "$@"'), ("scontrol", "printf 'n1\\nn2\\n'")):
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    monkeypatch.setattr(doctor, "examine", lambda config: [])
    console = Console(file=io.StringIO())
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert doctor.run(config, console) == 0
    for name, value in (("JOB_ID", "7"), ("NNODES", "2"), ("JOB_NODELIST", "n[1-2]")):
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(UserError, match="node n2, answer: it ended without a report"):
        doctor.run(config, console)


def test_nodes_that_a_login_node_cannot_resolve_meet_by_the_first_ones_name(monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "login")
    assert node_check._meeting_place(["localhost", "n2"]) == "127.0.0.1"
    assert node_check._meeting_place(["no-such-node.invalid", "n2"]) == "no-such-node.invalid"
    monkeypatch.setenv("SLURMD_NODENAME", "localhost")
    assert node_check._meeting_place(["localhost", "localhost"]) == network.main_address()


def test_a_report_that_srun_broke_into_labelled_pieces_is_put_together():
    texts = [json.dumps({"node": node, "word": " two  spaces " * 50}) for node in ("n1", "n2")]
    lines = [("stdout", 0.0, "1: a library's own line")]
    for start in range(0, len(texts[0]), 100):
        lines += [("stdout", 1.0, f"{task}: {text[start : start + 100]}") for task, text in enumerate(texts)]
    first, second = node_check._reports(["n1", "n2"], lines, 0.5, "")
    assert [first["node"], second["node"]] == ["n1", "n2"]
    assert second["word"] == " two  spaces " * 50 and first["received"] == 1.0


BAD_GPU = {"gpus": [{"name": "H100", "driver": "580.1", "memory_mb": 81920, "used_mb": 5}] * 7}
GOOD_GPU = {"gpus": [{"name": "H100", "driver": "580.1", "memory_mb": 81920, "used_mb": 5}] * 8}


@pytest.mark.parametrize(
    ("first", "second", "proven", "unfit"),
    [
        (GOOD_GPU, BAD_GPU, False, ["n2"]),
        (BAD_GPU, BAD_GPU, False, None),  # eight were asked for and nobody has them: wrong input
        (BAD_GPU, BAD_GPU, True, ["n1", "n2"]),  # it ran with eight before
        (
            GOOD_GPU,
            {**GOOD_GPU, "errors": {"gpus": "nvidia-smi: Unable to determine the device handle"}},
            False,
            ["n2"],
        ),
        ({**GOOD_GPU, "infiniband": 7}, {**GOOD_GPU, "infiniband": 8}, False, ["n1"]),
        ({**GOOD_GPU, "scratch_free": 0}, GOOD_GPU, False, ["n1"]),
        ({**GOOD_GPU, "gpu_faults": ["GPU 3: memory rows that wait for a reset"]}, GOOD_GPU, False, ["n1"]),
    ],
)
def test_what_fails_on_some_nodes_only_is_the_nodes_fault(
    config, config_path, monkeypatch, first, second, proven, unfit
):
    """A requeue takes others; an exit code of 2 would end an eight-day run for one GPU."""
    config.parallel.device, config.parallel.gpus_per_node = "cuda", 8
    reports = [{"node": name, "errors": {}, **facts} for name, facts in (("n1", first), ("n2", second))]
    monkeypatch.setattr(node_check, "gather", lambda *_: reports)
    with pytest.raises(UserError) as refused:
        node_check.check_nodes(["n1", "n2"], config, config_path, proven=proven)
    assert getattr(refused.value, "nodes", None) == unfit
    assert node_check.faulty_nodes(["n1", "n2"], config, config_path) == [
        name
        for name, facts in (("n1", first), ("n2", second))
        if facts is not GOOD_GPU and "scratch_free" not in facts and facts.get("infiniband") != 8
    ]
