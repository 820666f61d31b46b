"""Which worker runs which test file (file_scheduling.py)."""

from types import SimpleNamespace

import file_scheduling
import pytest
from file_scheduling import LONG, ROOT, TOGETHER, FileScheduling, imports_much

HEAVY = "tests/backends/test_episodes.py"
LIGHT = "tests/files/test_files.py"


class Worker:
    """What the scheduling sees of one; `complete` runs all that it was given."""

    def __init__(self, workerid: str, files: list[str]) -> None:
        self.gateway = SimpleNamespace(id=workerid)
        self.shutting_down = False
        self.collected = [f"{file}::test_{number}" for file in files for number in range(3)]
        self.given: list[int] = []
        self.ran: list[str] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def complete(self, scheduling: FileScheduling) -> None:
        while self.given:
            index = self.given.pop(0)
            self.ran.append(self.collected[index])
            scheduling.mark_test_complete(self, index)


def test_the_files_are_there():
    assert not [file for file in (*LONG, *TOGETHER, *TOGETHER.values()) if not (ROOT / file).is_file()]
    assert imports_much(ROOT / HEAVY) and not imports_much(ROOT / LIGHT)


@pytest.mark.parametrize(
    ("worker", "file", "skipped"), [("gw0", HEAVY, False), ("gw1", HEAVY, True), ("gw1", LIGHT, False)]
)
def test_only_the_first_worker_collects_what_imports_much(worker, file, skipped):
    config = SimpleNamespace(workerinput={"by_file": True, "workerid": worker})
    assert file_scheduling.is_anothers(ROOT / file, config) is skipped
    assert not file_scheduling.is_anothers(ROOT / file, SimpleNamespace())  # no worker of pytest-xdist


def test_each_test_runs_once_and_whoever_has_collected_begins():
    scheduling = FileScheduling(SimpleNamespace(getvalue=lambda name: ["2*popen"]))
    light = [LIGHT, "tests/test_architecture.py"]
    first, second = Worker("gw0", [*light, HEAVY]), Worker("gw1", light)
    for worker in (first, second):
        scheduling.add_node(worker)
    scheduling.add_node_collection(second, second.collected)
    scheduling.schedule()
    assert second.given and not scheduling.tests_finished
    second.given, waits = [], second.given  # the second is slow
    scheduling.add_node_collection(first, first.collected)
    scheduling.schedule()
    first.complete(scheduling)
    assert first.ran[0].startswith(HEAVY) and not scheduling.tests_finished
    second.given = waits
    second.complete(scheduling)
    assert sorted(first.ran + second.ran) == sorted(first.collected)
    assert first.shutting_down and second.shutting_down and scheduling.tests_finished


def test_the_run_is_not_over_before_the_first_worker_has_collected():
    scheduling = FileScheduling(SimpleNamespace(getvalue=lambda name: ["2*popen"]))
    first, second = Worker("gw0", [LIGHT, HEAVY]), Worker("gw1", [LIGHT])
    for worker in (first, second):
        scheduling.add_node(worker)
    for worker in (second, first):
        assert not scheduling.tests_finished
        scheduling.add_node_collection(worker, worker.collected)
        scheduling.schedule()
        worker.complete(scheduling)
    assert second.ran == second.collected and first.ran == first.collected[3:] and scheduling.tests_finished
