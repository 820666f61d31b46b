"""What a node reports of itself."""

import os
import socket
import tempfile

import pytest

from retool_mcore.cluster import node_report
from retool_mcore.cluster.node_verdicts import fitness, verdicts
from retool_mcore.config import compose
from retool_mcore.preflight import machine


@pytest.fixture
def config(tmp_path):
    return compose("doctor", [f"runs_dir={tmp_path / 'runs'}"])


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts a stand-in for nvidia-smi, a shell script, at the front of PATH."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    monkeypatch.setenv("PATH", str(tool.parent), prepend=os.pathsep)

    def says(script):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)

    return says


def test_nvidia_smi_answers_are_read(driver):
    driver("printf 'NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4\\nGrid, odd, 570.86.15, [N/A], [N/A]\\n\\n'")
    assert machine.gpus() == [
        {"name": "NVIDIA H100 80GB HBM3", "driver": "570.86.15", "memory_mb": 81559, "used_mb": 4},
        {"name": "Grid, odd", "driver": "570.86.15", "memory_mb": None, "used_mb": None},
    ]
    assert machine.gpu_memory_bytes() == [81559 * 2**20, None]
    driver(
        "printf ' \\tGPU0\\tGPU1\\tGPU2\\t\\n GPU0\\tX\\tOK\\tCNS\\t\\n"
        " GPU1\\tOK\\tX\\tOK\\t\\n GPU2\\tCNS\\tOK\\tX\\t\\n"
        "\\nLegend:\\n\\n  X    = Self\\n  OK   = Status Ok\\n  CNS  = Chipset not supported\\n'"
    )
    assert node_report.unreachable_peers() == ["GPU0-GPU2"]
    driver("printf '\\033[4m\\tGPU0\\033[0m\\n GPU0\\tX\\n'")
    assert node_report.unreachable_peers() == []


def test_a_driver_that_does_not_answer_is_an_error_of_the_report(driver, config):
    driver("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert machine.gpu_memory_bytes() == []
    config.parallel.device = "cuda"
    found = node_report.report(config, sandbox=False)
    assert "version mismatch" in found["errors"]["gpus"] and "gpus" not in found and "python" in found
    assert "gpus" in {verdict.check for verdict in verdicts([found], config) if not verdict.ok}


def test_a_scratch_that_is_not_there_is_an_error_and_not_another_folder(monkeypatch, config, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert node_report.report(config, sandbox=False)["scratch"] == str(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not there"))
    found = node_report.report(config, sandbox=False)
    assert "is not there or not writable" in found["errors"]["scratch"]
    wrong = [verdict for verdict in verdicts([found], config) if verdict.check == "scratch"]
    assert [verdict.ok for verdict in wrong] == [False] and "another scratch" in wrong[0].advice


@pytest.mark.parametrize("named", ["lo", "no0,lo", " lo"])
def test_the_interface_that_is_named_is_reported(monkeypatch, config, named):
    assert "interface" not in node_report.report(config, sandbox=False)
    monkeypatch.setenv("RETOOL_INTERFACE", named)
    assert node_report.report(config, sandbox=False)["interface"] == ("lo", "127.0.0.1")


def test_an_interface_that_is_not_here_is_an_error_with_advice(monkeypatch, config):
    monkeypatch.setenv("RETOOL_INTERFACE", "no0,no1")
    found = node_report.report(config, sandbox=False)
    (row,) = [row for row in fitness(found, config) if row[0] == "interface"]
    assert not row[1] and "RETOOL_INTERFACE=no0,no1" in row[2] and "interface of every node" in row[3]


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


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch, config):
    monkeypatch.setattr(node_report, "TOKEN_WAIT_S", 0.0)
    (tmp_path / "runs").write_text("a file")
    for token in ("", "t"):  # alone, and in a job
        found = node_report.report(config, token=token, sandbox=False)
        assert "run_dir" in found["errors"] and "run_dir" not in found


def test_a_look_alone_makes_no_folder(tmp_path, config):
    found = node_report.report(config, sandbox=False)
    assert "run_dir" not in found["errors"] and not (tmp_path / "runs").exists()


def test_the_token_must_be_the_one_written(tmp_path, monkeypatch):
    monkeypatch.setattr(node_report, "TOKEN_WAIT_S", 0.0)
    path = node_report.token_file(tmp_path, "t")
    assert not node_report.sees(path, "t")
    path.parent.mkdir()
    path.write_text("of another file system")
    assert not node_report.sees(path, "t")
    path.write_text("t")
    assert node_report.sees(path, "t")


@pytest.mark.parametrize(
    ("ecc", "pending", "faults"),
    [
        ("0\n0", "No\nNo", []),
        ("[N/A]\n[N/A]", "[N/A]\n[N/A]", []),
        ("0\n2", "0\n0", ["GPU 1: 2 uncorrected ECC errors"]),
        ("0\n0", "Yes\nNo", ["GPU 0: memory rows that wait for a reset"]),
    ],
)
def test_faults_that_the_driver_knows_of_are_named_by_gpu(monkeypatch, ecc, pending, faults):
    answers = {"ecc": ecc, "pending": pending, "failure": "No\nNo"}

    def nvidia_smi(question: str, _: str) -> str:
        return next(text for word, text in answers.items() if word in question)

    monkeypatch.setattr(node_report.machine, "nvidia_smi", nvidia_smi)
    assert node_report.gpu_faults() == faults
