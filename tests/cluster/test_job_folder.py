"""A job's own TMPDIR on each of its nodes: jobs do not meet in it, sockets fit below it, and it goes with the job."""

import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from retool_mcore import temporary
from retool_mcore.backends.env import stage_env
from retool_mcore.errors import UserError

JOB = temporary.job_folder("15", 2)
NAME = JOB[temporary.JOB]


@pytest.fixture
def base():
    """A node's folder for temporary files, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def uncached(monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", None)
    for name in (temporary.GIVEN, temporary.JOB, "SLURM_PROCID", "TEMP", "TMP"):
        monkeypatch.delenv(name, raising=False)


def run_python(env, *words: str) -> subprocess.CompletedProcess:
    """Runs Python as srun starts it on a node with that environment."""
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "SLURM_PROCID": "0"}
    command = [sys.executable, *words]
    return subprocess.run(command, env=own | env, capture_output=True, text=True, cwd=Path(__file__).parents[2])


def test_a_stage_of_a_job_has_a_folder_of_its_own_which_others_can_only_pass_through(base, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(base))
    monkeypatch.setenv(temporary.JOB, NAME)
    env = stage_env({"parallel": {"device": "cpu"}})
    folder = Path(env["TMPDIR"])
    assert folder == base / NAME and stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert os.environ["TMPDIR"] == str(base), "the job's own process keeps the node's, which it hands to the others"
    # What the stage starts in turn stays there.
    assert temporary.variables(env) == {}


@pytest.mark.parametrize(
    "jobs", [[("15", 0), ("16", 0)], [("15", 0), ("15", 1)], [("25_1", 0), ("25_2", 0)], [("25", 1), ("25_1", 1)]]
)
def test_jobs_tasks_and_starts_do_not_meet(base, jobs):
    found = [temporary.variables({"TMPDIR": str(base)} | temporary.job_folder(*job))["TMPDIR"] for job in jobs]
    assert len(set(found)) == 2 and all(os.path.isdir(path) for path in found)


@pytest.mark.parametrize("length", [10, 40, 60, 107, 250])
def test_sockets_fit_below_the_folder(base, length):
    place = base
    while (missing := length - len(str(place)) - 1) > 0:
        place = place / ("d" * min(missing, 200))
    place.mkdir(parents=True, exist_ok=True)
    env = {"TMPDIR": str(place)} | temporary.job_folder("4294967294_4000000", 99)
    folder = Path((env | temporary.variables(env))["TMPDIR"])
    assert folder.samefile(place / env[temporary.JOB]) and len(str(folder)) + temporary.ROOM <= temporary.MOST_BYTES
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / ("s" * (temporary.ROOM - 2))))


@pytest.mark.parametrize("name", [None, "TMP", "TEMP"])
def test_a_node_without_tmpdir_has_one_too(base, monkeypatch, name):
    monkeypatch.setattr(temporary, "PLACES", (str(base),))
    env = JOB | ({name: str(base)} if name else {})
    assert temporary.variables(env)["TMPDIR"] == str(base / NAME)


@pytest.mark.parametrize("deep", ["", "d" * 150], ids=["short", "long"])
def test_another_node_makes_its_own_from_what_the_first_was_given(base, deep):
    """The first node's folder, or its link, would be made by Slurm there: a plain folder, or /tmp in its place."""
    place = base / deep
    place.mkdir(exist_ok=True)
    given = {"TMPDIR": str(place)} | JOB
    first = given | temporary.variables(given)
    assert temporary.inherited(first) == given
    assert temporary.inherited(given) == given
    assert given | temporary.variables(temporary.inherited(first)) == first
    plain = {"TMPDIR": str(place)}  # without a job
    assert temporary.inherited(plain | temporary.variables(plain)) == plain


def test_a_folder_that_slurm_has_made_is_opened_for_sandboxed_programs(base):
    (base / NAME).mkdir(mode=0o700)
    temporary.variables({"TMPDIR": str(base)} | JOB)
    assert stat.S_IMODE((base / NAME).stat().st_mode) == 0o711


@pytest.mark.parametrize("kind", ["link", "open to others"])
def test_a_folder_that_somebody_has_put_there_is_refused(base, kind):
    if kind == "link":
        (base / NAME).symlink_to("/etc")
    else:
        (base / NAME).mkdir()
        (base / NAME).chmod(0o777)
    with pytest.raises(UserError, match=f"{NAME} is a link, or belongs to or is open to another user"):
        temporary.variables({"TMPDIR": str(base)} | JOB)


def test_a_missing_place_is_left_to_the_check_that_names_it(base, monkeypatch):
    env = {"TMPDIR": str(base / "not there")} | JOB
    assert temporary.variables(env) == {}
    monkeypatch.setenv("TMPDIR", env["TMPDIR"])
    with pytest.raises(UserError, match="is not there or not writable"):
        temporary.folder()


@pytest.mark.parametrize("deep", ["", "d" * 150], ids=["short", "long"])
def test_the_sweep_takes_the_folder_and_those_of_earlier_starts_and_no_other(base, deep):
    place = base / deep
    place.mkdir(exist_ok=True)
    others = ["retool-job-15-3", "retool-job-16-0", "retool-job-15_1-0", "retool-job-15-x", "somebody's"]
    for name in (NAME, "retool-job-15-0", *others):
        (place / name / "deep").mkdir(parents=True)
        (place / name).chmod(0o700)
        (place / name / "deep" / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(temporary.variables({"TMPDIR": str(place)} | JOB).get("TMPDIR", "") + "/s")
    done = run_python({"TMPDIR": str(place)} | JOB, "-m", "retool_mcore.cluster.node", "sweep", '{"mark": "15-2"}')
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in place.iterdir()) == sorted(others)
    links = [path for path in temporary.own().iterdir() if path.is_symlink() and not path.exists()]
    assert not links


def test_a_stage_on_a_node_runs_in_the_folder(base, tmp_path):
    """Through node.main: what the stage's command finds as its folder for temporary files."""
    (tmp_path / "config.yaml").write_text("{}")
    given = json.dumps({"mark": "15-2", "stage": "sft", "config": str(tmp_path / "config.yaml"), "others": []})
    code = f"""
import sys
from retool_mcore.cluster import node
look = [sys.executable, "-c", "import tempfile; print('found', tempfile.gettempdir())"]
node.stage_command = lambda *_: look
sys.exit(node.main(["stage", {given!r}]))
"""
    done = run_python({"TMPDIR": str(base), "RETOOL_TEMPLATE": "off"} | JOB, "-c", code)
    assert f"found {base / NAME}" in done.stdout.splitlines(), done.stderr


def test_a_part_that_is_ended_from_outside_leaves_nothing(base, tmp_path):
    """Slurm starts no step, and so no sweep, in a job that was cancelled."""
    (tmp_path / "config.yaml").write_text("{}")
    given = json.dumps({"mark": "15-2", "stage": "sft", "config": str(tmp_path / "config.yaml"), "others": []})
    code = f"""
import os, signal, sys, threading
from retool_mcore.cluster import node
look = "import tempfile, time; print(tempfile.mkdtemp()); time.sleep(60)"
node.stage_command = lambda *_: [sys.executable, "-uc", look]
threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
sys.exit(node.main(["stage", {given!r}]))
"""
    done = run_python({"TMPDIR": str(base), "RETOOL_TEMPLATE": "off"} | JOB, "-c", code)
    assert done.returncode == 143 and done.stdout.startswith(str(base / NAME)), done.stderr
    assert list(base.iterdir()) == []
