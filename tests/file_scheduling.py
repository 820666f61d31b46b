"""Which worker of pytest-xdist runs which files (launch/test.sh fast).

The imports of files that test beside verl's and vLLM's own code take half a minute of a processor. The first worker
alone collects them; the others, which need five seconds, begin meanwhile. Files that take long come first, so that all
workers end together.
"""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
MUCH = re.compile(
    r"^(?:from|import) (?:torch|transformers|verl|vllm|lone_episodes|chatml_tokenizer|played_loop"
    r"|tests\.support import untrusted|retool_mcore\.data\.sft_dataset"
    r"|retool_mcore\.backends\.verl|retool_mcore\.train\.eval|retool_mcore\.(?:coldstart\.|tools\.mcp_)client)\b",
    re.MULTILINE,
)
# By the seconds they take, waits included; the longest of the others take some ten.
LONG = (
    "tests/sandbox/hostile/test_hostile.py",
    "tests/config/test_resolved_examples.py",
    "tests/config/test_recipe_numbers.py",
    "tests/preflight/test_preflight_run.py",
    "tests/view/test_browser_list.py",
    "tests/docs/test_links_and_commands.py",
    "tests/planner/test_layouts.py",
    "tests/config/test_refused_values.py",
    "tests/security/test_megabytes.py",
    "tests/runner/test_launch.py",
    "tests/cluster/test_job.py",
    "tests/planner/test_plan_run.py",
    "tests/rollout/test_family_masks.py",
    "tests/runner/test_watchdog.py",
    "tests/state/test_heartbeat.py",
    "tests/sandbox/test_local_run.py",
    "tests/view/test_browser_overview.py",
)
# Files that compose the same choices, which a process does once (quick_compose.py).
TOGETHER = {"tests/config/test_real_configs.py": "tests/config/test_compose.py"}


@functools.cache
def imports_much(file: Path) -> bool:
    return file.suffix == ".py" and MUCH.search(file.read_text()) is not None


def is_anothers(file: Path, config: pytest.Config) -> bool:
    """Whether another worker than this process collects the file."""
    given = getattr(config, "workerinput", {})
    return given.get("by_file", False) and given["workerid"] != "gw0" and imports_much(file)


def scope(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    return TOGETHER.get(file, file)


def place(nodeid: str) -> int:
    file = scope(nodeid)
    return LONG.index(file) if file in LONG else len(LONG)


class FileScheduling(LoadFileScheduling):
    """A worker begins as soon as it has collected, and takes one file after another of those it has collected."""

    def __init__(self, config: pytest.Config, log=None) -> None:
        super().__init__(config, log)
        self.known: set[str] = set()

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self.registered_collections)

    @property
    def tests_finished(self) -> bool:
        return len(self.registered_collections) >= self.numnodes and super().tests_finished

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        self.registered_collections[node] = list(collection)
        for nodeid in collection:
            if nodeid not in self.known:
                self.workqueue.setdefault(self._split_scope(nodeid), {})[nodeid] = False
        self.known.update(collection)

    def schedule(self) -> None:
        for node in self.registered_collections:
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        own = set(self.registered_collections[node])
        # A worker runs a test only when it knows the next one.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            fitting = [scope for scope, tests in self.workqueue.items() if own.issuperset(tests)]
            if not fitting:
                return node.shutdown()
            # What nobody else can run comes first.
            self.workqueue.move_to_end(min(fitting, key=lambda scope: not imports_much(ROOT / scope)), last=False)
            self._assign_work_unit(node)
