import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from retool_mcore.sandbox.isolation import descendants

# A program that runs this can be found from outside of its namespaces, and so can what it forks.
TAKE_NAME = "import ctypes\nctypes.CDLL(None).prctl(15, b'{}')\n"


@pytest.fixture
def readable_path() -> Iterator[Path]:
    """A folder that every user may read: root's programs run as another user, who cannot enter pytest's own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def take_name():
    return TAKE_NAME.format


@pytest.fixture
def named_below():
    """Function (pid, name) -> ids of living descendants of that name."""

    def find(pid, name):
        found = []
        for child in descendants(pid):
            try:
                stat = Path(f"/proc/{child}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if f"({name})" in stat and stat.rpartition(")")[2].split()[0] != "Z":
                found.append(child)
        return found

    return find
