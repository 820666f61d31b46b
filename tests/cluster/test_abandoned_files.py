"""What a job's engines leave on a node is removed with the job, and nothing that somebody uses."""

import math
import socket
import tempfile
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

from retool_mcore.cluster import node


@pytest.fixture
def scratch():
    """A folder with a short name: a socket's path must stay under 108 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def abandoned():
    """A shared-memory object as an engine that was killed leaves it: no process has it mapped."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(memory._name, "shared_memory")
    memory.close()
    yield Path("/dev/shm", memory.name)
    Path("/dev/shm", memory.name).unlink(missing_ok=True)


def test_shared_memory_without_a_user_goes_and_anothers_stays(abandoned, scratch):
    began = time.time() - 60
    used = shared_memory.SharedMemory(create=True, size=4096)
    try:
        removed = node.remove_abandoned(began, scratch=scratch)
        assert abandoned in removed and not abandoned.exists()
        assert Path("/dev/shm", used.name).exists()
    finally:
        used.close()
        used.unlink()


def test_what_was_there_before_the_job_stays(abandoned, scratch):
    assert node.remove_abandoned(math.inf, scratch=scratch) == []
    assert node.remove_abandoned(time.time() + 60, scratch=scratch) == [] and abandoned.exists()


def test_dead_sockets_go_and_those_that_are_listened_on_stay(scratch):
    (scratch / "plain").touch()
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        living.bind(str(scratch / "living"))
        living.listen()
        dead.bind(str(scratch / "dead"))
        dead.close()
        node.remove_abandoned(time.time() - 60, shared=scratch / "none", scratch=scratch)
    assert sorted(path.name for path in scratch.iterdir()) == ["living", "plain"]
