"""A repository's environment: what its tools do, when it says that the tests pass, and what cannot forge that."""

import asyncio

import pytest

from retool_mcore.environments.repository import Check, RepositoryEnvironment, RepositoryTask
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Result, Status
from retool_mcore.sandbox.local import LocalSandbox

BROKEN = "def double(number):\n    return number + 2\n"
TEST = (
    "import unittest\nfrom pkg.core import double\n\n\nclass TestCore(unittest.TestCase):\n"
    "    def test_double(self):\n        self.assertEqual(double(3), 6)\n"
)
SETUP = "from pkg.core import double"
TASK = RepositoryTask(
    "double(5) gives 7, expected 10.",
    {"pkg/__init__.py": "", "pkg/core.py": BROKEN, "tests/__init__.py": "", "tests/test_core.py": TEST},
    (
        Check(SETUP, "double(5)", "10"),
        Check(SETUP, "double('ab')", "'abab'"),
        Check(SETUP, "double(None)", "TypeError"),
    ),
)
FIX = {"path": "pkg/core.py", "old": "number + 2", "new": "2 * number"}


def attempt(*steps, prepare=False):
    """(observations, verdict) of a trajectory that takes `steps`, (tool, arguments)."""

    async def run():
        sandbox = LocalSandbox(preload=(), workers=2)
        environment = RepositoryEnvironment(sandbox, timeout_s=20)
        try:
            assert await environment.reset({"repository": TASK.to_json()}) == TASK.issue
            if prepare:
                await environment.prepare()
            seen = [await environment.step(tool, arguments) for tool, arguments in steps]
            return seen, await environment.score()
        finally:
            await environment.close()
            await sandbox.close()

    return asyncio.run(run())


def test_a_trajectory_that_looks_tests_and_fixes_is_right():
    seen, verdict = attempt(
        ("list_files", {}),
        ("view", {"path": "pkg/core.py", "start": 2}),
        ("run_tests", {}),
        ("replace", FIX),
        ("run_tests", {}),
        ("code_interpreter", {"code": "from pkg.core import double\ndouble(21)"}),
        ("submit", {}),
        prepare=True,
    )
    texts = [observation.text for observation in seen]
    assert texts[0].splitlines()[1] == "pkg/core.py (2 lines)"
    assert texts[1] == "2     return number + 2"
    assert "AssertionError: 5 != 6" in texts[2] and "SystemExit" not in texts[2] and " in 0." not in texts[2]
    assert texts[4].endswith("Ran 1 test\n\nOK") and texts[5] == "42"
    assert [observation.status for observation in seen] == ["success"] * 2 + ["error"] + ["success"] * 4
    assert [observation.ends for observation in seen] == [False] * 6 + [True]
    assert verdict == 1.0


def test_what_only_satisfies_the_visible_tests_is_wrong():
    assert attempt(("replace", {**FIX, "new": "6"}))[1] == 0.0
    assert attempt()[1] == 0.0, "an untouched repository"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        # The tests are put back before they count.
        ("tests/test_core.py", TEST.replace("6)", "5)")),
        # A module that ends its process well, or prints what a check might print, or is equal to everything.
        ("pkg/core.py", "import os\n\n\ndef double(number):\n    os._exit(0)\n"),
        ("pkg/core.py", "import sys\nprint('[\"10\"]')\nsys.exit(0)\n"),
        ("pkg/core.py", "class Any:\n    __eq__ = lambda self, other: True\n\n\ndouble = lambda number: Any()\n"),
        ("unittest.py", "class TestCase: pass\n"),
    ],
)
def test_a_verdict_is_not_forged(path, text):
    assert attempt(("write", {"path": path, "text": text}))[1] == 0.0


def test_the_expected_values_never_enter_the_sandbox():
    class Spy:
        sent = ""

        async def run(self, code, *, files, **kwargs):
            self.sent += code + "".join(text.decode() for text in files.values())
            return Result(Status.SUCCESS, "", "", None, 0.0)

    async def run():
        environment = RepositoryEnvironment(Spy(), timeout_s=1)
        await environment.reset({"repository": TASK.to_json()})
        await environment.step("replace", FIX)
        await environment.score()
        return environment.sandbox.sent

    sent = asyncio.run(run())
    assert "double(None)" in sent and "abab" not in sent


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("view", {"path": "pkg/cor.py"}, "no file 'pkg/cor.py'"),
        ("view", {"path": "pkg/core.py", "start": 3}, "lines 1 to 2"),
        ("replace", {**FIX, "old": "numbers"}, "does not hold"),
        ("replace", {**FIX, "old": "number"}, "holds 2 times"),
        ("write", {"path": "../x.py", "text": ""}, "no path inside"),
        ("write", {"path": "/etc/passwd", "text": ""}, "no path inside"),
        ("write", {"path": "pkg", "text": ""}, "is a folder"),
        ("write", {"path": "a.py", "text": "x" * 200_001}, "200000 characters"),
        ("search", {"text": ""}, "empty"),
    ],
)
def test_what_cannot_be_done_is_an_observation(tool, arguments, words):
    async def run():
        environment = RepositoryEnvironment(sandbox=None, timeout_s=1)
        await environment.reset({"repository": TASK.to_json()})
        seen = await environment.step(tool, arguments)
        assert environment.files == TASK.files
        return seen

    seen = asyncio.run(run())
    assert seen.status == "error" and words in seen.text


def test_a_row_that_is_no_task_is_refused():
    environment = RepositoryEnvironment(sandbox=None, timeout_s=1)
    for text in ("", "[]", '{"issue": "x", "files": {}, "checks": []}', '{"issue": "x"}'):
        with pytest.raises(UserError, match="repository"):
            asyncio.run(environment.reset({"repository": text}))
