"""The levels of isolation that this machine can try, as parameters."""

import os
import sys
from pathlib import Path

import pytest


def _others_may_read(path: Path) -> bool:
    return all(folder.stat().st_mode & 0o001 for folder in path.resolve().parents)


# Below "namespaces" root's programs need another user id, which must be able to reach this Python.
HIDDEN = os.geteuid() == 0 and not _others_may_read(Path(sys.executable))
_SKIP = pytest.mark.skipif(HIDDEN, reason="programs never run as root, and no other user can read this Python")
LEVELS_HERE = ["namespaces", pytest.param("landlock", marks=_SKIP), pytest.param("process", marks=_SKIP)]
