"""Files in the working folder never take the place of installed packages in what a launcher starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retool_mcore import python_path
from retool_mcore.backends.env import stage_env, worker_env
from retool_mcore.runner import template

SHADOWS = ("datasets.py", "json.py", "random.py", "torch/__init__.py", "ray/__init__.py", "retool_mcore/__init__.py")
TRACK = "import json, random, importlib.util as u; print(json.__file__, u.find_spec('datasets').origin)"


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A working folder with a file by the name of each of SHADOWS, which ends whoever imports it."""
    for name in SHADOWS:
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"raise SystemExit({name!r} + ' of the working folder was imported')")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def run(*words, env):
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True)


@pytest.mark.parametrize("empty", ["{}", "{}:", ":{}", ":{}::"])
def test_a_stages_process_imports_what_is_installed(work, monkeypatch, empty):
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", empty.format(root))
    env = stage_env({"parallel": {"device": "cpu"}})
    done = run("-c", TRACK, env=env)
    assert str(work) not in done.stdout and done.returncode == 0, done.stderr
    done = run("-m", "retool_mcore.backends.patches", env=env)
    assert done.returncode == 0 and "ray._private" in done.stdout, done.stderr
    assert worker_env(env)["PYTHONSAFEPATH"] == "1"


def test_what_pythonpath_names_is_found_first(work, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ".")
    env = stage_env({"parallel": {"device": "cpu"}})
    assert env["PYTHONPATH"] == str(work)
    assert "json.py of the working folder was imported" in run("-c", "import json", env=env).stderr


def test_a_forked_process_imports_what_is_installed(work, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("RETOOL_TEMPLATE", raising=False)
    code = "from retool_mcore.runner import template; template.MODULES = {'both': [], 'cpu': [], 'cuda': []}; "
    path = work.parent / "t"
    monkeypatch.setattr(template, "_command", lambda socket: [
        sys.executable, "-c", code + f"import pathlib; template.main(pathlib.Path({str(socket)!r}))",
        " " * template.TITLE_ROOM,
    ])  # fmt: skip
    monkeypatch.setenv("TMPDIR", str(path))
    path.mkdir()
    with template.forked(stage_env({"parallel": {"device": "cpu"}}), [sys.executable]) as (env, [python]):
        assert python != sys.executable
        script = work / "script.py"
        script.write_text("import json, sys; print(json.dumps(sys.path))")
        for words in (["-c", script.read_text()], [str(script)], ["-m", "json.tool", os.devnull]):
            done = subprocess.run([python, *words], env=env, capture_output=True, text=True)
            assert "of the working folder" not in done.stderr, done.stderr
            if "json.tool" not in words:
                assert str(work) not in json.loads(done.stdout) and "" not in json.loads(done.stdout)


def test_the_command_line_takes_the_working_folder_out_for_all_it_starts(work, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    assert python_path.variables() == {"PYTHONSAFEPATH": "1"}
    monkeypatch.setenv("PYTHONPATH", "a::b:")
    assert python_path.variables()["PYTHONPATH"] == f"{work}/a:{work}/b"


def test_a_job_of_ray_keeps_the_drivers_folder_out():
    """tests/e2e/test_somebody_elses_machine.py: its workers do."""
    from retool_mcore.backends.ray_job import InstalledFirst

    job = InstalledFirst()
    job._py_driver_sys_path.extend(["/work"])
    assert list(job._get_proto_job_config().py_driver_sys_path) == []
