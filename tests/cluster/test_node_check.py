"""Node reports and the verdicts over them; the real report of this machine through a stand-in for srun.

The stand-in runs the command once a node on this machine and labels its lines, as `srun --label` does.
"""

import copy
import io
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from rich.console import Console

from retool_mcore.cli import doctor
from retool_mcore.cluster import node_check, node_report
from retool_mcore.cluster.node_verdicts import refusal, table, verdicts
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


def gpu(**changes):
    return {"name": "H100", "driver": "570.1", "memory_mb": 81920, "used_mb": 5} | changes


def good(node="n1", **changes):
    found = {
        "node": node,
        "hostname": node,
        "errors": {},
        "python": "3.12.3",
        "packages": {"torch": "2.11.0", "ray": "2.56.1"},
        "code": "abc",
        "run_dir": "/runs/a",
        "run_dir_free": 10**12,
        "scratch": "/tmp",
        "scratch_free": 10**12,
        "model": "def",
        "shm_free": 10**11,
        "memory_available": 10**11,
        "limits": {"RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 10**6},
        "ports_busy": [],
        "token_seen": True,
        "gpus": [gpu() for _ in range(8)],
        "peers": [],
        "infiniband": 8,
        "sandbox": {"found": "isolation: namespaces", "seconds": 0.5},
        "launched": 1000.0,
        "clock_started": 1001.0,
        "clock_ended": 1003.0,
        "received": 1003.1,
    }
    return found | changes


CUDA = {"parallel": {"device": "cuda", "nodes": 2, "gpus_per_node": 8, "ray": {"object_store_bytes": None}}}


def bad(reports, config=CUDA):
    return [verdict for verdict in verdicts(reports, config) if not verdict.ok]


def test_two_good_nodes_pass_every_check():
    found = verdicts([good("n1"), good("n2")], CUDA)
    assert refusal(found) == "" and {verdict.node for verdict in found} == {"n1", "n2"}
    names = {verdict.check for verdict in found}
    expected = ["python", "code", "model", "driver", "infiniband", "memory", "ports", "clock", "GPUs", "sandbox"]
    assert names > {*expected, "package torch", "GPU model", "run_dir shared", "open files", "locked memory"}


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        ({"python": "3.12.1"}, "python", "3.12.1, but 3.12.3 on n1"),
        ({"packages": {"torch": "2.10.0", "ray": "2.56.1"}}, "package torch", "2.10.0, but 2.11.0 on n1"),
        ({"packages": {"torch": "2.11.0", "ray": "absent"}}, "package ray", "absent, but 2.56.1 on n1"),
        ({"code": "xyz"}, "code", "xyz, but abc on n1"),
        ({"model": "absent"}, "model", "absent, but def on n1"),
        ({"gpus": [gpu(driver="560.0")] * 8}, "driver", "560.0, but 570.1 on n1"),
        ({"gpus": [gpu()] * 7 + [gpu(name="A100")]}, "GPU model", "A100, H100, but H100 on n1"),
        ({"gpus": [gpu()] * 7}, "GPUs", "7, 8 needed"),
        ({"gpus": [gpu()] * 6 + [gpu(used_mb=40000), gpu()]}, "GPU memory in use", "GPU 6: 40000 of 81920 MiB"),
        ({"infiniband": 7}, "infiniband", "7, but 8 on n1"),
        ({"run_dir_free": 0}, "disk of run_dir", "0.0 GiB free, 1.0 needed"),
        ({"scratch_free": 2**30}, "disk of /tmp", "1.0 GiB free, 10.0 needed"),
        ({"shm_free": 64 * 2**20}, "shared memory", "0.1 GiB free, 1.0 needed"),
        ({"memory_available": 2**30}, "memory", "1.0 GiB free, 70.0 needed"),
        ({"limits": {"RLIMIT_MEMLOCK": -1, "RLIMIT_NOFILE": 1024}}, "open files", "1024, 4096 needed"),
        ({"limits": {"RLIMIT_MEMLOCK": 65536, "RLIMIT_NOFILE": -1}}, "locked memory", "65536, 1073741824 needed"),
        ({"ports_busy": [6379, 8265]}, "ports", "6379, 8265 in use"),
        ({"token_seen": False}, "run_dir shared", "not there"),
        ({"errors": {"sandbox": "no bwrap"}}, "sandbox", "no bwrap"),
        ({"errors": {"run_dir": "[Errno 30] Read-only"}}, "run_dir", "[Errno 30] Read-only"),
        ({"clock_started": 991.0, "clock_ended": 993.0}, "clock", "9 s behind the first node"),
        ({"clock_started": 1020.0, "clock_ended": 1022.0}, "clock", "19 s ahead of the first node"),
        ({"clock_ended": 10**6, "received": 1003.0}, "clock", "ahead of"),
    ],
)
def test_one_fault_is_one_verdict_on_its_node(change, check, words):
    (found,) = bad([good("n1"), good("n2", **change)])
    assert (found.node, found.check) == ("n2", check)
    assert words in found.detail and found.advice


def test_a_slow_node_is_not_taken_for_one_with_a_wrong_clock():
    # 100 s to start and 100 s more to work: its clock is right.
    assert not bad([good("n1"), good("n2", clock_started=1100.0, clock_ended=1200.0, received=1201.0)])


def test_the_odd_node_out_is_the_minority_even_when_it_is_the_first():
    (found,) = bad([good("n1", code="old"), good("n2"), good("n3")])
    assert found.node == "n1" and found.detail == "old, but abc on n2"


def test_of_two_versions_on_two_nodes_the_first_node_has_the_right_one():
    assert bad([good("n1", code="x"), good("n2", code="y")])[0].node == "n2"


def test_a_node_without_answer_fails_alone():
    found = bad([good("n1"), {"node": "n2", "no_answer": "no answer within 120 s"}, good("n3")])
    assert [(verdict.node, verdict.check) for verdict in found] == [("n2", "answer")]
    assert "scontrol show node n2" in found[0].advice


def test_a_cpu_job_asks_for_no_gpu_and_a_job_without_infiniband_for_no_locked_memory():
    cpu = copy.deepcopy(CUDA)
    cpu["parallel"]["device"] = "cpu"
    report = {name: value for name, value in good().items() if name not in ("gpus", "peers", "infiniband")}
    report["limits"] = {"RLIMIT_MEMLOCK": 65536, "RLIMIT_NOFILE": -1}
    assert not bad([report], cpu)
    assert not bad([good(infiniband=0, limits=report["limits"])])


def test_ray_store_of_the_configuration_decides_the_shared_memory():
    config = copy.deepcopy(CUDA)
    config["parallel"]["ray"]["object_store_bytes"] = 2 * 10**11
    assert [verdict.check for verdict in bad([good()], config)] == ["shared memory"]


def test_missing_peer_access_is_told_and_not_refused():
    found = verdicts([good(peers=["GPU0-GPU1"])], CUDA)
    assert refusal(found) == ""
    assert [verdict.detail for verdict in found if verdict.check == "peer access"] == ["missing: GPU0-GPU1"]


def test_the_refusal_names_node_fault_and_remedy_and_the_table_the_rest():
    reports = [good("n1"), good("n2", code="[/x]", ports_busy=[6379])]
    found = verdicts(reports, CUDA)
    message = refusal(found)
    assert message.startswith("node n2, code: [/x], but abc on n1: run the same checkout") and "(1 more" in message
    console = Console(record=True, width=200, file=io.StringIO())
    console.print(table(found, ["n1", "n2"]))
    text = console.export_text()
    assert "6379 in use" in text and "[/x]" in text and "ss -ltnp" in text and "that failed: 2" in text
    assert "package torch" not in text


def test_the_table_of_many_nodes_has_the_failing_ones():
    nodes = [f"n{i}" for i in range(16)]
    found = verdicts([good(node, **({"code": "old"} if node == "n7" else {})) for node in nodes], CUDA)
    assert [column.header for column in table(found, nodes).columns] == ["check", "n7", "what to do"]


# Looking


def test_nvidia_smi_answers_are_read():
    text = "NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4\nGrid, odd, 570.86.15, [N/A], [N/A]\n\n"
    assert node_report.parse_gpus(text) == [
        {"name": "NVIDIA H100 80GB HBM3", "driver": "570.86.15", "memory_mb": 81559, "used_mb": 4},
        {"name": "Grid, odd", "driver": "570.86.15", "memory_mb": None, "used_mb": None},
    ]
    matrix = (
        " \tGPU0\tGPU1\tGPU2\t\n GPU0\tX\tOK\tCNS\t\n GPU1\tOK\tX\tOK\t\n GPU2\tCNS\tOK\tX\t\n"
        "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    )
    assert node_report.parse_peers(matrix) == ["GPU0-GPU2"]
    assert node_report.parse_peers("\x1b[4m\tGPU0\x1b[0m\n GPU0\tX\n") == []


def test_a_driver_that_does_not_answer_is_an_error_of_the_report(tmp_path, monkeypatch, config):
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)
    config.parallel.device = "cuda"
    found = node_report.report(config, sandbox=False)
    assert "version mismatch" in found["errors"]["gpus"] and "gpus" not in found and "python" in found
    assert "gpus" in {verdict.check for verdict in bad([found], config)}


def test_the_code_hash_follows_content_and_names_of_python_files(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("1")
    first = node_report.code_hash(tmp_path)
    (tmp_path / "cache.pyc").write_text("2")
    assert node_report.code_hash(tmp_path) == first
    (tmp_path / "sub" / "a.py").write_text("2")
    changed = node_report.code_hash(tmp_path)
    (tmp_path / "sub" / "a.py").rename(tmp_path / "a.py")
    assert len({first, changed, node_report.code_hash(tmp_path)}) == 3


def test_model_files_are_compared_by_name_and_size(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert node_report.model_files(one) == node_report.model_files(two)
    (tmp_path / "two" / "model.safetensors").write_text("weigh")  # a copy that was cut short
    assert node_report.model_files(one) != node_report.model_files(two)
    assert node_report.model_files(str(tmp_path / "three")) == "absent"


def test_a_port_that_is_listened_on_is_reported(config):
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        assert node_report.report(config, ports=[port], sandbox=False)["ports_busy"] == [port]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, config):
    (tmp_path / "runs").write_text("a file")
    found = node_report.report(config, sandbox=False)
    assert "run_dir" in found["errors"] and "run_dir" not in found


def test_the_token_must_be_the_one_written(tmp_path, monkeypatch):
    monkeypatch.setattr(node_report, "TOKEN_WAIT_S", 0.0)
    path = node_report.token_file(tmp_path, "t")
    assert not node_report.sees(path, "t")
    path.parent.mkdir()
    path.write_text("of another file system")
    assert not node_report.sees(path, "t")
    path.write_text("t")
    assert node_report.sees(path, "t")


# The whole check, with this machine as every node


def test_one_node_prints_one_json_line(config_path):
    command = [sys.executable, "-m", "retool_mcore.cluster.node_check", f"--config={config_path}", "--no-sandbox"]
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
    start = time.monotonic()
    reports = node_check.gather(["n1", "n2"], command, srun, deadline_s=3.0)
    assert time.monotonic() - start < 60
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
    assert {"--nodes=2", "--nodelist=n1,n2", "--overlap", "--label"} < set(options) and command == ["look"]


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


def test_a_report_that_srun_broke_into_labelled_pieces_is_put_together():
    texts = [json.dumps({"node": node, "word": " two  spaces " * 50}) for node in ("n1", "n2")]
    lines = [("stdout", 0.0, "1: a library's own line")]
    for start in range(0, len(texts[0]), 100):
        lines += [("stdout", 1.0, f"{task}: {text[start : start + 100]}") for task, text in enumerate(texts)]
    first, second = node_check._reports(["n1", "n2"], lines, 0.5, "")
    assert [first["node"], second["node"]] == ["n1", "n2"]
    assert second["word"] == " two  spaces " * 50 and first["received"] == 1.0
