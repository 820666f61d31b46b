"""One writer for every file that must not be seen half."""

import os
import signal
import subprocess
import sys

import pytest

from retool_mcore.files import replacing, write_atomically


def test_it_replaces_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "tracker.txt"
    write_atomically(path, "1")
    write_atomically(path, "é 2\n")
    assert path.read_bytes() == "é 2\n".encode() and os.listdir(tmp_path) == ["tracker.txt"]


def test_a_body_that_raises_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as part:
        part.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["rows.parquet"]


def test_killed_while_writing_the_old_file_stays(tmp_path):
    path = tmp_path / "tracker.txt"
    path.write_text("old")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom retool_mcore.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as part:\n"
        "    part.write_text('ha')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)]).returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
