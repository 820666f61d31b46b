"""The journal of finished trajectories on the disk."""

import json
import subprocess
import sys

import numpy as np
import pytest

from retool_mcore.rollout import unfinished
from retool_mcore.rollout.unfinished import Unfinished, folder_of, remove_through


def keep(folder, *keys):
    """One worker of an attempt that finished `keys`."""
    worker = Unfinished(folder)
    for key in keys:
        worker.append(key, {"key": key, "score": np.float64(0.1), "text": "\u2028" * 40})
    return worker


def keys(folder):
    worker = Unfinished(folder)
    return {key for key in worker.found if worker.take(key) is not None}


def test_any_number_of_workers_finds_what_those_of_two_attempts_kept(tmp_path):
    folder = folder_of(tmp_path, 5, "abc")
    assert keys(folder) == set()
    keep(folder, "1/0/x", "1/1/x"), keep(folder, "2/0/x")
    assert len(list(folder.iterdir())) == 2
    second = keep(folder, "3/0/x")
    assert second.take("1/1/x") == {"key": "1/1/x", "score": 0.1, "text": "\u2028" * 40}
    assert second.take("9/0/x") is None
    for worker in (Unfinished(folder), Unfinished(folder)):
        assert worker.found.keys() == {"1/0/x", "1/1/x", "2/0/x", "3/0/x"}


def test_a_torn_tail_ends_its_file_and_nothing_else(tmp_path):
    keep(tmp_path, "a", "b")
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    keep(tmp_path, "c")
    length = len(whole) // 2  # of one record
    for cut in range(len(whole)):
        file.write_bytes(whole[:cut])
        assert keys(tmp_path) == {"c"} | ({"a"} if cut >= length else set()), cut
    file.write_bytes(whole[:length] + bytes(length))  # as a file system may leave it that lost its power
    assert keys(tmp_path) == {"a", "c"}


@pytest.mark.parametrize("place", range(0, 120, 7))
def test_a_damaged_record_is_not_there(tmp_path, place):
    keep(tmp_path, "a", "b")
    (file,) = tmp_path.iterdir()
    content = bytearray(file.read_bytes())
    content[place % (len(content) // 2)] ^= 1
    file.write_bytes(content)
    found = Unfinished(tmp_path)
    assert {key for key in found.found if found.take(key) is not None} <= {"b"}


def test_a_killed_process_loses_nothing_that_it_kept(tmp_path):
    program = (
        "import os, signal, sys; from pathlib import Path; from retool_mcore.rollout.unfinished import Unfinished\n"
        "own = Unfinished(Path(sys.argv[1])); own.append('a', {'n': [1] * 10000}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -9
    assert Unfinished(tmp_path).take("a") == {"n": [1] * 10000}


def test_what_another_policy_finished_is_not_seen_and_all_of_it_goes_with_its_step(tmp_path):
    (
        keep(folder_of(tmp_path, 5, "abc"), "a"),
        keep(folder_of(tmp_path, 5, "def"), "b"),
        keep(folder_of(tmp_path, 6, "0"), "c"),
    )
    assert keys(folder_of(tmp_path, 5, "abc")) == {"a"} and keys(folder_of(tmp_path, 5, "fff")) == set()
    remove_through(tmp_path, 4)
    assert len(list((tmp_path / unfinished.FOLDER).iterdir())) == 3
    remove_through(tmp_path, 5)
    assert [path.name for path in (tmp_path / unfinished.FOLDER).iterdir()] == ["step_000006-0"]


def test_a_full_disk_is_told_once_and_stops_nothing(tmp_path, capsys):
    worker = keep(tmp_path, "a")
    worker.file.close()
    with open("/dev/full", "wb", buffering=0) as worker.file:
        for key in ("b", "c"):
            worker.append(key, {})
    assert capsys.readouterr().out.count("No space left on device") == 1
    assert keys(tmp_path) == {"a"} and json.dumps(worker.take("a")) == "null"  # its own it never asks for
