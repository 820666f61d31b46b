"""`from retool_mcore import ...`: quick to import, complete, documented, and the notebook of docs/ runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import make_run

import retool_mcore
from retool_mcore.errors import UserError

NOTEBOOK = Path(__file__).parents[2] / "docs/python.ipynb"
HEAVY = {"torch", "transformers", "vllm", "verl", "ray", "pydantic", "omegaconf", "pyarrow", "numpy", "asyncio"}


def test_importing_the_package_imports_nothing_else():
    program = f"import sys; import retool_mcore; sys.exit(' '.join({HEAVY} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_is_there_and_documented():
    assert set(retool_mcore.__all__) == set(retool_mcore._NAMES)
    for name in retool_mcore.__all__:
        assert getattr(retool_mcore, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'fit'; it has compose, evaluate"):
        getattr(retool_mcore, "fit")  # noqa: B009


def test_what_is_refused_is_refused_in_python_too(tmp_path):
    with pytest.raises(UserError, match="which is not a folder"):
        retool_mcore.evaluate(["policy=/nowhere", f"runs_dir={tmp_path}"])
    with pytest.raises(UserError, match="sandbox.timeout is not a setting"):
        retool_mcore.Sandbox(timeout=1)


def test_an_evaluation_that_is_complete_is_read(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setattr("retool_mcore.api.launch", lambda stage, config: seen.append((stage, config.k)))
    folder = tmp_path / "x/eval/rl"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text('{"k": 3, "accuracy": {}}')
    found = retool_mcore.evaluate(["name=x", f"runs_dir={tmp_path}", "k=3"])
    assert seen == [("eval", 3)] and found == {"k": 3, "accuracy": {}, "folder": folder}


def test_the_notebook_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs/quickstart")
    names: dict = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "an output would grow old"
            exec(compile("".join(cell["source"]), f"{NOTEBOOK.name}:{cell['id']}", "exec"), names)
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "success Fraction(1, 2)" and told[1].startswith("error ") and "ZeroDivisionError" in "".join(told)
    assert "True False" in told and any("'cispo' or 'sequence_clip'." in line for line in told)
    assert sum(line.endswith("tokens sampled") for line in told) == 2
    assert "retool_mcore.api" in sys.modules
