"""What all tests share."""

import gc
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import file_scheduling
import one_template
import pytest
import quick_compose
from omegaconf import OmegaConf
from xdist.workermanage import WorkerController

from retool_mcore.preflight import machine

# A stage of the fast tests is a line of Python: a template that imports torch for it would take longer than they do.
# The end-to-end tests have one for all their stages (tests/e2e/conftest.py).
os.environ.setdefault("RETOOL_TEMPLATE", "off")
# Among a million objects of torch, verl and vLLM, looking for garbage so often takes a seventh of the time.
gc.set_threshold(50_000, 20, 50)
quick_compose.remember()


@pytest.fixture(autouse=True)
def environment_of_its_own() -> Iterator[None]:
    """Restore variables and umask after each test: commands that run in the test's process set them for a process that
    is theirs."""
    before, mask = dict(os.environ), os.umask(0)
    os.umask(mask)
    yield
    os.umask(mask)
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def one_start_of_each_sandbox() -> Iterator[None]:
    """A configuration's real sandbox is started and asked once, not by every test whose stage checks it before a start;
    one that does not answer, each time."""
    check, answers = machine.check_sandbox, {}

    def once(given: Mapping) -> str:
        named = OmegaConf.to_yaml(given)
        if named not in answers:
            answers[named] = check(given)
        return answers[named]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "check_sandbox", once)
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Of the end-to-end tests alone the controller of several workers starts the template for all of them."""
    if of_end_to_end_alone(config) and config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        kept = ExitStack()
        kept.enter_context(one_template.of_the_controller())
        config.add_cleanup(kept.close)


def of_end_to_end_alone(config: pytest.Config) -> bool:
    return config.option.markexpr.startswith("e2e and")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["by_file"] = node.config.getvalue("dist") == "loadfile"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> file_scheduling.FileScheduling | None:
    return file_scheduling.FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the end-to-end tests alone (launch/test.sh e2e), a file without any is not imported: half a minute."""
    if file_scheduling.is_anothers(collection_path, config):
        return True
    unwanted = of_end_to_end_alone(config) and collection_path.suffix == ".py"
    return True if unwanted and "e2e" not in collection_path.read_text() else None


def pytest_collection_finish() -> None:
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the end-to-end tests those first that start the most engines, and those that share no run beside the ones
    that make it: two workers (launch/test.sh e2e) take one test after another from the front, and end together."""

    def place(item: pytest.Item) -> int:
        fixtures = getattr(item, "fixturenames", ())
        if "made_once" not in fixtures:
            return 1 if "tests/e2e/" in item.path.as_posix() else 3
        return 0 if "trained" in fixtures else 2

    items.sort(key=lambda item: file_scheduling.place(item.nodeid))
    if any("made_once" in getattr(item, "fixturenames", ()) for item in items):
        items.sort(key=place)
