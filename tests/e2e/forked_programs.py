"""Programs in forks of the session's template, as a stage's processes are: the libraries, which are most of the time,
are imported already."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.forked_python import PYTHON

REPOSITORY = Path(__file__).parents[2]  # a stage does not search the working folder


def started(program: str, **variables: str) -> subprocess.Popen:
    """The program in a stage's environment with these variables too; its output is text."""
    environment = stage_env({"parallel": {"device": "cpu"}}) | {"PYTHONPATH": str(REPOSITORY)} | variables
    command = [os.environ[PYTHON], "-c", program]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lines_printed(programs: Mapping[str, subprocess.Popen]) -> dict[str, list[str]]:
    """By name the lines that each printed, once all have ended well."""
    printed = {name: process.communicate(timeout=500) for name, process in programs.items()}
    for name, process in programs.items():
        assert process.returncode == 0, printed[name][1]
    return {name: text.splitlines() for name, (text, _) in printed.items()}
