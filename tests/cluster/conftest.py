"""One Slurm for all cluster tests; each test must leave it as it found it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_clusters import await_idle

from tests.support.slurm import slurm_here
from tests.support.slurm.slurm_cluster import Cluster


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Iterator[Cluster]:
    """The cluster itself, for fixtures of a session; a test takes `cluster`."""
    if reason := slurm_here.why_not():
        pytest.skip(reason)
    cluster = slurm_here.up(Path(tmp_path_factory.mktemp("slurm")))
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(slurm) -> Iterator[Cluster]:
    """The running cluster. After the test no job may be left, no process on any node, and both nodes must be idle."""
    yield slurm
    await_idle(slurm)


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Restores the handlers that a test's job has set."""
    before = {
        signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
    }
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script of that name first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def write(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write
