"""Programs in forks of one process: the libraries, which are most of the time, are imported once."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

FORKS = """
import gc, json, os, sys, traceback; gc.disable()
import {modules}

for number, program in enumerate(json.loads(sys.argv[1])):
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0, program
        continue
    os.dup2(os.open(f"{{sys.argv[2]}}/{{number}}", os.O_WRONLY | os.O_CREAT), 1)
    code = 1
    try:
        exec(program, {{"__name__": "__main__"}})
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)  # threads of the libraries did not come along: an ordinary exit would wait for them
"""


def lines_printed(
    programs: Mapping[str, str], folder: Path, env: Mapping[str, str], modules: str
) -> dict[str, list[str]]:
    """By name the lines that each program printed, in `env` and with the `modules` imported."""
    command = [sys.executable, "-c", FORKS.format(modules=modules), json.dumps([*programs.values()]), folder]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name: (folder / str(number)).read_text().splitlines() for number, name in enumerate(programs)}
