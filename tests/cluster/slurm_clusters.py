"""Slurms of a test's own, and how a test must leave one."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.slurm import slurm_here
from tests.support.slurm.slurm_cluster import Cluster


def await_idle(cluster: Cluster) -> None:
    """Cancels all jobs and waits until their nodes are idle and nothing runs on them."""
    cluster.run("scancel", "--user=root")
    deadline, idle = time.monotonic() + 60, ["idle"] * len(cluster.inits)
    while (states := cluster.run("sinfo", "-h", "-N", "-p", "all", "-o", "%t").split()) != idle or cluster.orphans():
        assert time.monotonic() < deadline, f"left behind: nodes {states}, processes {cluster.orphans()}"
        time.sleep(0.2)


@contextmanager
def other_cluster(folder: Path, **given) -> Iterator[Cluster]:
    """A cluster of its own, as slurm_here.up makes it; `cluster` must be left in the same way."""
    if reason := slurm_here.why_not():
        pytest.skip(reason)
    made = slurm_here.up(folder, **given)
    try:
        yield made
        await_idle(made)
    finally:
        made.down()
