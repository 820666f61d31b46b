"""What a wheel holds is enough to work outside the repository: its configurations travel in it."""

import os
import subprocess
import sys
from pathlib import Path

from retool_mcore.config import CONFIG_DIR

ROOT = Path(__file__).parents[2]
PROGRAM = """
from retool_mcore import config
from retool_mcore.cli.main import main

for words in (["prepare", "--dry-run", "name=x"], ["plan", "--help"]):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    assert not code, words
print(config.CONFIG_DIR)
"""


def test_a_built_package_works_in_an_empty_folder(tmp_path):
    built, empty = tmp_path / "built", tmp_path / "empty"
    empty.mkdir()
    build = [sys.executable, "setup.py", "--quiet", "build_py", f"--build-lib={built}"]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    inside = built / "retool_mcore" / "configs"
    for kind in ("*.yaml", "*.jinja"):
        ours = {path.relative_to(CONFIG_DIR) for path in CONFIG_DIR.rglob(kind)}
        assert {path.relative_to(inside) for path in inside.rglob(kind)} == ours
    env = os.environ | {"PYTHONPATH": str(built)}
    run = subprocess.run([sys.executable, "-c", PROGRAM], cwd=empty, env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert Path(run.stdout.splitlines()[-1]) == inside
    assert not any(empty.iterdir())
