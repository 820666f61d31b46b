"""One small cold-started run that the end-to-end tests start from, whichever of pytest's workers they run in."""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from e2e_runs import RESUMABLE, succeed

from retool_mcore.backends.env import stage_env
from retool_mcore.backends.forked_python import SOCKET
from retool_mcore.runner import template


@pytest.fixture(scope="session")
def of_all_workers(tmp_path_factory) -> Path:
    """A folder that pytest's workers share."""
    root = tmp_path_factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


@pytest.fixture(scope="session")
def made_once(of_all_workers) -> Callable[[str, Callable[[Path], None]], Path]:
    """Function name, make -> folder of that name that `make` filled, in the first worker that asked; others wait."""
    root = of_all_workers

    def get(name: str, make: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.made"
        with open(root / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker in which it failed
                make(folder)
                done.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def cold_started(made_once) -> Path:
    """A runs folder whose run `t` is prepared and cold-started under TP=2, text format, as a user's shell does it."""

    def make(runs: Path) -> None:
        succeed("prepare", runs, plainly=True)
        succeed("sft", runs, plainly=True)

    return made_once("cold_started", make)


@pytest.fixture(scope="session")
def trained(cold_started, made_once) -> Path:
    """A runs folder whose run `t` went on to the end of RL, RESUMABLE and undisturbed, in the layout of the cold start.
    Tests may add evaluations and exports to it, and change nothing else."""

    def make(runs: Path) -> None:
        shutil.copytree(cold_started, runs, symlinks=True)
        succeed("rl", runs, *RESUMABLE, plainly=True)

    return made_once("trained", make)


@pytest.fixture
def fork_of_cold_start(cold_started, tmp_path) -> Path:
    """A copy of `cold_started` to train on, which itself stays as it is: other tests start from it in any order."""
    shutil.copytree(cold_started, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"


@pytest.fixture(scope="session", autouse=True)
def shared_template(of_all_workers) -> Iterator[dict[str, str]]:
    """One template that the processes of all stages are forked from, those of the shared runs above too; its variables,
    which are in the environment meanwhile. The worker that asks first starts it and keeps it until no other uses it.
    It finds the modules of this folder, as those of a test that breaks a part must: with another PYTHONPATH than the
    template's they would be started."""
    told = of_all_workers / "template.json"
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        users = stack.enter_context(open(of_all_workers / "template.users", "w"))
        with open(of_all_workers / "template.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (told.exists() and Path(json.loads(told.read_text())[SOCKET]).exists()):
                environment = stage_env({"parallel": {"device": "cpu"}})
                own = {name: value for name, value in environment.items() if "RETOOL" not in name}
                made, _ = stack.enter_context(template.forked(own, []))
                told.write_text(json.dumps({name: made[name] for name in template.VARIABLES}))
                stack.callback(fcntl.flock, users, fcntl.LOCK_EX)  # the others have ended
            fcntl.flock(users, fcntl.LOCK_SH)
        named = json.loads(told.read_text())
        for name, value in named.items():
            patch.setenv(name, value)
        yield named


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, shared_template):
    for name in [n for n in os.environ if n.startswith(("RETOOL_", "VERL_", "TENSORBOARD_"))]:
        if name not in shared_template:
            monkeypatch.delenv(name)
