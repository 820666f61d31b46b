"""The doctor's findings one by one; the adapters in a fresh Python, against stand-ins for that Python's answer."""

import io
import sys

import pytest
from rich.console import Console

from retool_mcore import resources
from retool_mcore.backends import check
from retool_mcore.cli import doctor
from retool_mcore.config import compose
from retool_mcore.errors import UserError
from retool_mcore.preflight import machine


def test_pins_compare_what_is_installed_with_what_applies():
    requirements = [
        "rich==15.0.0",
        "rich<1",
        "no-such-package-anywhere==1",
        'rich<2; extra == "gpu"',
        'rich>2; extra == "cpu"',
    ]
    findings = doctor.pins(requirements, "cpu")
    assert [finding.ok for finding in findings] == [True, False, False, True]
    assert findings[1].advice.startswith("expected rich<1")
    assert findings[2].found == "not installed"


def test_a_local_build_satisfies_the_pin(monkeypatch):
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "2.13.0+cpu")
    (finding,) = doctor.pins(['torch==2.13.0; extra == "cpu"', 'torch==2.11.0; extra == "gpu"'], "cpu")
    assert finding.ok and finding.found == "2.13.0+cpu"


def test_python_version_of_each_environment():
    assert doctor.python_version("cpu").ok == (sys.version_info[:2] == (3, 11))
    assert doctor.python_version("gpu").ok == (sys.version_info[:2] == (3, 12))


def fake_python(tmp_path, text):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("answer", "ok", "words"),
    [
        ('echo noise; echo \'[["verl_cpu", true, "a platform"]]\'', True, "a platform"),
        ('echo \'[["verl_cpu", false, "a platform"]]\'', False, "did not take effect"),
        ("echo 'ImportError: no verl' >&2; exit 1", False, "ImportError: no verl"),
        ("exit 1", False, "no message"),
    ],
)
def test_adapters_as_a_fresh_python_reports_them(tmp_path, monkeypatch, answer, ok, words):
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, answer))
    (finding,) = doctor.adapters({"PATH": "/usr/bin:/bin"})
    assert finding.ok is ok and words in finding.found


def test_adapters_that_never_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, "exec sleep 60"))
    monkeypatch.setattr(doctor, "ADAPTERS_TIMEOUT_S", 0.2)
    (finding,) = doctor.adapters({"PATH": "/usr/bin:/bin"})
    assert not finding.ok and "no answer" in finding.found


def test_no_adapters_are_needed_with_cuda(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, "echo '[]'"))
    assert doctor.adapters({"PATH": "/usr/bin:/bin"}) == []


def test_what_every_node_of_a_job_is_asked_is_asked_here(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "adapters", lambda env: [])

    def findings(*overrides):
        found = doctor.examine(compose("doctor", [f"runs_dir={tmp_path / 'runs'}", *overrides]))
        return {finding.name: finding for finding in found}

    fine = findings()
    assert fine["sandbox"].ok and "isolation: " in fine["sandbox"].found
    assert "GiB free" in fine["disk of run_dir"].found and {"shared memory", "open files"} < fine.keys()
    monkeypatch.setattr(resources, "available_memory_bytes", lambda: machine.GIB)
    down = findings("sandbox=fusion", "sandbox.url=http://127.0.0.1:9/run_code")
    assert not down["sandbox"].ok and down["sandbox"].advice and not down["memory"].ok
    assert not (tmp_path / "runs").exists()


def test_the_table_shows_advice_only_where_something_is_wrong(monkeypatch):
    findings = [
        doctor.Finding("good", "9", True, "do nothing"),
        doctor.Finding("bad", "[Errno 2] [/x]", False, "do this"),
    ]
    monkeypatch.setattr(doctor, "examine", lambda config: findings)
    console = Console(record=True, width=120, file=io.StringIO())
    assert doctor.run(None, console) == 1
    text = console.export_text()
    assert (
        "[Errno 2] [/x]" in text and "do this" in text and "do nothing" not in text and "1 of 2 checks failed" in text
    )
    del findings[1]
    assert doctor.run(None, console) == 0


def test_gpu_libraries_are_looked_for_without_importing_them(tmp_path, monkeypatch):
    bridge = tmp_path / "megatron_bridge-0.5.1.dist-info"
    bridge.mkdir()
    (bridge / "METADATA").write_text("Metadata-Version: 2.1\nName: megatron-bridge\nVersion: 0.5.1\n")
    (tmp_path / "transformer_engine.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    findings = {finding.name: finding for finding in doctor.gpu_libraries()}
    assert findings["Megatron Bridge"].found == "0.5.1" and findings["Transformer Engine"].ok
    monkeypatch.setattr(sys, "path", [])
    assert not any(finding.ok for finding in doctor.gpu_libraries() if "Apex" not in finding.name)


def test_a_source_tree_that_was_never_installed_is_a_finding(monkeypatch):
    monkeypatch.setattr(doctor, "DISTRIBUTION", "no-such-distribution")
    (finding,) = doctor.package("cpu")
    assert not finding.ok and finding.found == "not installed"


def test_an_adapter_without_effect_stops_a_stage_on_a_gpu_too(monkeypatch):
    monkeypatch.setattr(check, "adapters", lambda: [("megatron_cuda", False, "gradient-accumulation fusion")])
    with pytest.raises(UserError, match="the adapters megatron_cuda did not take effect.*PYTHONPATH alone"):
        check.assert_adapters()
