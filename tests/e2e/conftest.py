"""One small cold-started run that the end-to-end tests start from, whichever of pytest's workers they run in."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import one_template
import pytest
from e2e_runs import RESUMABLE, succeed


@pytest.fixture(scope="session")
def made_once(tmp_path_factory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Function name, make -> folder of that name that `make` filled, in the first worker that asked; others wait."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root

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
def shared_template() -> Iterator[dict[str, str]]:
    """The template of all stages, of the shared runs above too."""
    with one_template.shared() as named:
        yield named


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, shared_template):
    for name in [n for n in os.environ if n.startswith(("RETOOL_", "VERL_", "TENSORBOARD_"))]:
        if name not in shared_template:
            monkeypatch.delenv(name)
