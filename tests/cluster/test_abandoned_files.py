"""What a job's engines leave on a node is removed with the job, and nothing that somebody uses."""

import math
import time
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import pytest

from retool_mcore.cluster import node


@pytest.fixture
def abandoned():
    """A shared-memory object as an engine that was killed leaves it: no process has it mapped."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    resource_tracker.unregister(memory._name, "shared_memory")
    memory.close()
    yield Path("/dev/shm", memory.name)
    Path("/dev/shm", memory.name).unlink(missing_ok=True)


def test_shared_memory_without_a_user_goes_and_anothers_stays(abandoned):
    began = time.time() - 60
    used = shared_memory.SharedMemory(create=True, size=4096)
    try:
        removed = node.remove_abandoned(began)
        assert abandoned in removed and not abandoned.exists()
        assert Path("/dev/shm", used.name).exists()
    finally:
        used.close()
        used.unlink()


def test_what_was_there_before_the_job_stays(abandoned):
    assert node.remove_abandoned(math.inf) == []
    assert node.remove_abandoned(time.time() + 60) == [] and abandoned.exists()
