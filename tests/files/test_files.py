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


@pytest.mark.parametrize(("soft", "hard", "then"), [(256, 900, 900), (256, 4096, 1000), (900, 900, 900)])
def test_as_many_files_may_be_open_as_the_hard_limit_lets(soft, hard, then):
    program = (
        "import resource; from retool_mcore.files import allow_open_files\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); allow_open_files(1000)\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [str(then), str(hard)], done.stderr
