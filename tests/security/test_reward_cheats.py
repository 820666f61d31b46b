"""Edits that want a repository task's reward without mending its bug: each is worth nothing.

They lie in reward_cheats/, by name. `code` is put behind the module with the bug, where NAME (and `guess`) already
answers the told calls from a table (`told`), others as the bug does; `files` are written beside it (`deep`: so many in
folders of folders), `run` is a program run by the tool before that. `fools`: the judge that runs the hidden checks as a
test file beside the policy's files (unittest or pytest) and takes this cheat for a mend; "" where it is meant for
another judge. `gap`: why it passes all the same.
"""

import ast
import asyncio
import re
from pathlib import Path

import pytest
import yaml

from retool_mcore.environments.repo_bugs import generate
from retool_mcore.environments.repository import _RUN_TESTS, RepositoryEnvironment
from retool_mcore.sandbox.base import Status
from retool_mcore.sandbox.local import LocalSandbox

FOLDER = Path(__file__).with_name("reward_cheats")
CHEATS = {name: cheat for path in sorted(FOLDER.iterdir()) for name, cheat in yaml.safe_load(path.read_text()).items()}
TABLE = """
told = {told}


def guess(*args, wrong={name}):
    return told[repr(args)] if repr(args) in told else wrong(*args)


{name} = guess
"""
# A judge as it should not be: with the hidden checks as a test file beside the policy's files.
JUDGES = {
    "unittest": _RUN_TESTS,
    "pytest": """
import subprocess, sys
environment = {"PYTHONPATH": ".", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
raise SystemExit(subprocess.run([sys.executable, "-m", "pytest", "-q", "tests"], env=environment).returncode)
""",
}


@pytest.fixture(scope="module")
def sandbox():
    sandbox = LocalSandbox(preload=(), workers=2)
    yield sandbox
    asyncio.run(sandbox.close())


@pytest.fixture(scope="module")
def made(sandbox):
    return asyncio.run(generate(1, 23, "train", sandbox, functions=2))[0]


def told(made):
    """{the arguments' repr: value} of the calls whose right values the policy can read: the issue's and the tests'."""
    name, files = made.bug.partition(":")[0], made.task.files
    pattern = rf"(?:assertEqual\(| )({name}\(.*?\))(?:, | gives .*?, expected )(.*?)(?:\)|\. Fix the bug\.)$"
    text = "\n".join([made.task.issue, *(files[path] for path in files if path.startswith("tests/"))])
    found = re.findall(pattern, text, re.MULTILINE)
    return {repr(eval(call, {name: lambda *args: args})): ast.literal_eval(value) for call, value in found}


def lookup(made, code):
    name = made.bug.partition(":")[0]
    table = TABLE.format(name=name, told=told(made))
    return made.task.files[made.path] + table + re.sub(r"\bNAME\b", name, code)


async def play(made, sandbox, cheat):
    environment = RepositoryEnvironment(sandbox, 20.0)
    await environment.reset({"repository": made.task.to_json()})
    await environment.prepare()
    environment.timeout_s = cheat.get("limit_s", 20.0)
    if "run" in cheat:
        await environment.step("code_interpreter", {"code": cheat["run"]})
    for path, text in {made.path: lookup(made, cheat.get("code", "")), **cheat.get("files", {})}.items():
        assert (await environment.step("write", {"path": path, "text": text})).status == Status.SUCCESS
    for n in range(cheat.get("deep", 0)):
        await environment.step("write", {"path": f"{n}/" + "a/" * 90 + "a.py", "text": ""})
    return environment


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True, reason=cheat["gap"])] if "gap" in cheat else [])
        for name, cheat in CHEATS.items()
    ],
)
def test_a_cheat_is_worth_nothing_and_does_not_void_its_group(name, made, sandbox):
    async def run():
        environment = await play(made, sandbox, CHEATS[name])
        return await environment.score(), environment.sandbox_failed

    assert asyncio.run(run()) == (0.0, False)


@pytest.mark.parametrize("name", [name for name, cheat in CHEATS.items() if cheat.get("fools", "unittest")])
def test_the_cheat_is_one(name, made, sandbox):
    """It works where the hidden checks lie beside the policy's files: otherwise its zero would show nothing."""

    async def run():
        environment = await play(made, sandbox, CHEATS[name])
        files = environment.files | {path: text for path, text in made.task.files.items() if path.startswith("tests/")}
        lines = ["import unittest", *{check.setup for check in made.task.checks}]
        lines += ["class TestHidden(unittest.TestCase):"]
        for n, check in enumerate(made.task.checks):
            lines += [f"    def test_{n}(self):", f"        self.assertEqual({check.call}, {check.expected})"]
        environment.files = files | {"tests/test_hidden.py": "\n".join(lines) + "\n"}
        return await environment._run(JUDGES[CHEATS[name].get("fools", "unittest")])

    result = asyncio.run(run())
    assert result.exit_code == 0, result


def test_a_half_mend_gains_nothing_by_forging_what_the_tests_report(made, sandbox):
    """Right in every hidden call, wrong in a visible one, with a unittest that finds nothing wrong."""

    async def run(patch):
        environment = RepositoryEnvironment(sandbox, 5.0)
        await environment.reset({"repository": made.task.to_json()})
        name, seen = made.bug.partition(":")[0], [*told(made)][-1]
        half = f"right = {name}\n{name} = lambda *args: None if repr(args) == {seen!r} else right(*args)\n"
        await environment.step("write", {"path": made.path, "text": made.fixed + half + patch})
        report = (await environment.step("run_tests", {})).status
        return report, await environment.score()

    assert asyncio.run(run("")) == (Status.ERROR, 0.0)
    patch = CHEATS["a result that is always good"]["code"]
    assert asyncio.run(run(patch)) == (Status.SUCCESS, 0.0)


def test_the_mend_is_right(made, sandbox):
    async def run():
        environment = RepositoryEnvironment(sandbox, 5.0)
        await environment.reset({"repository": made.task.to_json()})
        await environment.step("write", {"path": made.path, "text": made.fixed})
        return await environment.score()

    assert asyncio.run(run()) == 1.0
