"""What is asked of every shell script of ours, whichever way it says so."""

import os
import subprocess
from pathlib import Path

TRAPS = {
    "a command that fails": "false",
    "a pipe whose first command fails": "false | cat",
    "a variable that nobody set": ': "$no_such_variable_anywhere"',
}


def assert_strict(script: Path, folder: Path) -> None:
    """It may be started, it parses, and from its first command on it goes on after none of TRAPS."""
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    for what, trap in TRAPS.items():
        probe = folder / script.name
        probe.write_text("\n".join([*lines[: first + 1], trap, "echo went on"]))
        done = subprocess.run(["bash", probe], capture_output=True, text=True)
        assert done.returncode != 0 and "went on" not in done.stdout, f"{script.name} goes on after {what}"
