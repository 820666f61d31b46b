"""TMPDIR of any length: sockets below it have short paths, in a place that nobody else can enter; or one sentence."""

import multiprocessing.connection
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from retool_mcore import temporary
from retool_mcore.backends.env import ray_folder, stage_env
from retool_mcore.cluster import node
from retool_mcore.errors import UserError

RAY = "ray/session_2026-11-28_06-36-39_123456_4194304/sockets/plasma_store.1"
VLLM = "01234567-89ab-cdef-0123-456789abcdef"


def folder_of(tmp_path: Path, length: int) -> Path:
    """A folder whose path has that many bytes, or tmp_path where that is longer already."""
    while (missing := length - len(str(tmp_path)) - 1) > 0:
        tmp_path = tmp_path / ("d" * min(missing, 200))
    tmp_path.mkdir(parents=True, exist_ok=True)
    return tmp_path


@pytest.fixture(autouse=True)
def uncached(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv(temporary.GIVEN, raising=False)


@pytest.mark.parametrize("length", [60, 76, 100, 107, 108, 250, 1000])
def test_sockets_of_libraries_fit_below_tmpdir_of_any_length(monkeypatch, tmp_path, length):
    given = folder_of(tmp_path, length)
    monkeypatch.setenv("TMPDIR", str(given))
    env = stage_env({"parallel": {"device": "cpu"}})
    short = Path(env["TMPDIR"])
    assert short.samefile(given)
    for name in (VLLM, "torch-shm-dir-abcdef/manager.sock"):
        path = short / name
        path.parent.mkdir(exist_ok=True)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    code = "from multiprocessing.connection import Listener; print(Listener(family='AF_UNIX').address)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.startswith(f"{short}/pymp-"), done.stderr


@pytest.mark.parametrize("name", ["two words", "数据", "a;b", "q'q", 'q"q', "p%41"])
def test_a_folder_that_a_command_line_would_tear_apart_has_a_plain_name(monkeypatch, tmp_path, name):
    (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / name))
    found = temporary.variables()
    assert Path(found["TMPDIR"]).samefile(tmp_path / name)
    assert name not in found["TMPDIR"] and len(found["TMPDIR"]) < 40


def test_a_short_folder_keeps_its_name(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as given:
        monkeypatch.setenv("TMPDIR", given)
        assert temporary.variables() == {}
    monkeypatch.delenv("TMPDIR")
    assert temporary.variables() == {}


def test_a_relative_folder_becomes_absolute(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as given:
        monkeypatch.chdir(given)
        Path("scratch").mkdir()
        monkeypatch.setenv("TMPDIR", "scratch")
        assert temporary.variables()["TMPDIR"] == f"{given}/scratch"


@pytest.mark.parametrize("length", [30, 76, 300])
@pytest.mark.parametrize("own", [True, False], ids=["RAY_TMPDIR", "TMPDIR"])
def test_rays_sockets_fit(monkeypatch, tmp_path, length, own):
    given = folder_of(tmp_path, length)
    monkeypatch.setenv("RAY_TMPDIR" if own else "TMPDIR", str(given))
    folder = ray_folder()
    path = folder / RAY
    path.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0 or own


def test_the_longest_user_number_leaves_room_for_rays_sockets(monkeypatch, tmp_path):
    longest = 4_294_967_294  # of a directory service
    monkeypatch.setattr(os, "geteuid", lambda: longest)
    monkeypatch.setattr(temporary, "own_folder", lambda path: None)
    name = temporary.own() / temporary._name(tmp_path)
    assert len(str(name)) + temporary.RAY_ROOM <= temporary.MOST_BYTES
    assert len(RAY) + 1 <= temporary.RAY_ROOM


def test_another_node_makes_the_link_again(monkeypatch, tmp_path):
    given = folder_of(tmp_path, 150)
    found = temporary.variables({"TMPDIR": str(given)})
    Path(found["TMPDIR"]).unlink()
    monkeypatch.setitem(os.environ, "TMPDIR", found["TMPDIR"])
    monkeypatch.setitem(os.environ, temporary.GIVEN, found[temporary.GIVEN])
    assert not os.path.exists(found["TMPDIR"])
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    for name in ("PYTHONSAFEPATH", "PYTHONPATH"):  # node.main sets them
        monkeypatch.setenv(name, os.environ.get(name, ""))
    with pytest.raises(KeyError, match="SLURM_PROCID"):
        node.main(["sweep", '{"mark": "1-0"}'])
    assert Path(found["TMPDIR"]).samefile(given)
    elsewhere = folder_of(tmp_path / "elsewhere", 150)  # a prolog of Slurm's has set it for that node
    assert temporary.variables({**found, "TMPDIR": str(elsewhere)})[temporary.GIVEN] == str(elsewhere)


def test_a_place_that_somebody_else_has_taken_is_not_used(monkeypatch, tmp_path):
    given, taken, runtime = folder_of(tmp_path, 150), tmp_path / "taken", tmp_path / "r"
    runtime.mkdir()
    monkeypatch.setattr(temporary, "PLACES", (str(taken),))
    taken.mkdir()
    (taken / f"retool-{os.geteuid()}").symlink_to(tmp_path)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with pytest.raises(UserError, match="is a link, or belongs to"):
        temporary.short(given)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    found = temporary.short(given)
    assert found.parent == runtime / f"retool-{os.geteuid()}" and found.samefile(given)
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_links_to_folders_that_are_gone_are_removed(tmp_path):
    given = [folder_of(tmp_path / name, 150) for name in "ab"]
    first = temporary.short(given[0])
    shutil.rmtree(given[0])
    other = temporary.short(given[1])
    assert not first.is_symlink() and other.is_symlink()
    assert temporary.short(given[1]) == other


def test_a_link_to_another_folder_is_replaced(tmp_path):
    given = folder_of(tmp_path, 150)
    link = temporary.short(given)
    link.unlink()
    link.symlink_to("/usr")
    assert temporary.short(given).samefile(given)


@pytest.mark.parametrize("kind", ["missing", "file", "dangling link"])
def test_a_folder_that_takes_no_files_is_refused(monkeypatch, tmp_path, kind):
    path = tmp_path / "tmp"
    if kind == "file":
        path.write_text("")
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    monkeypatch.setenv("TMPDIR", str(path))
    assert temporary.variables() == {}
    with pytest.raises(UserError, match=f"TMPDIR={path} is not there or not writable"):
        temporary.folder()


def test_a_folder_without_sockets_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(folder_of(tmp_path, 150)))
    assert temporary.folder()  # long ones are fine

    def refuse(self, path):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(socket, "socket", type("Refusing", (socket.socket,), {"bind": refuse}))
    with pytest.raises(UserError, match="takes no sockets"):
        temporary.folder()
    assert not list(Path(tempfile.gettempdir()).glob("retool-*"))


def test_a_listener_of_multiprocessing_is_what_the_room_is_for():
    with multiprocessing.connection.Listener(family="AF_UNIX") as listener:
        assert len(listener.address) - len(tempfile.gettempdir()) <= temporary.ROOM
