"""The generated bug-fix tasks: seeded, verified, with a validation set of other functions."""

import ast
import asyncio

import pytest

from retool_mcore.environments.bugs import bugs
from retool_mcore.environments.functions import FUNCTIONS
from retool_mcore.environments.repo_bugs import generate, split_of
from retool_mcore.environments.repository import RepositoryEnvironment
from retool_mcore.errors import UserError
from retool_mcore.sandbox.local import LocalSandbox


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_has_bugs_that_parse_and_change_one_place(name):
    source = FUNCTIONS[name].source
    found = bugs(source)
    assert len(found) >= 2 and len({bug.apply(source) for bug in found}) == len(found)
    for bug in found:
        changed = bug.apply(source)
        assert changed != source
        ast.parse(changed)
        assert changed.endswith(source[bug.end :]) and changed.startswith(source[: bug.start])


def test_tasks_are_seeded_fail_as_given_and_pass_with_the_reference_fix():
    async def run():
        sandbox = LocalSandbox(preload=(), workers=2)
        try:
            made = await generate(2, 1, "train", sandbox, functions=2)
            again = await generate(1, 1, "train", sandbox, functions=2)
            other = await generate(1, 1, "validation", sandbox, functions=2)
            verdicts = []
            for item in made:
                environment = RepositoryEnvironment(sandbox, 20)
                await environment.reset({"repository": item.task.to_json()})
                await environment.prepare()  # raises unless the tests fail
                await environment.step("write", {"path": item.path, "text": item.fixed})
                verdicts.append(await environment.score())
            return made, again, other, verdicts
        finally:
            await sandbox.close()

    made, again, other, verdicts = asyncio.run(run())
    assert verdicts == [1.0, 1.0]
    assert made[0] == again[0] and made[0].task != made[1].task
    wrong = [item.bug.partition(":")[0] for item in (*made, *other)]
    assert [split_of(name) for name in wrong] == ["train", "train", "validation"]
    for item in made:
        assert item.task.issue.endswith("Fix the bug.") and item.fixed != item.task.files[item.path]
        assert len(item.task.checks) >= 6, "hidden checks of both functions"


def test_a_bug_shows_in_two_untold_calls_and_a_table_of_the_told_ones_is_worth_nothing():
    async def run():
        sandbox = LocalSandbox(preload=(), workers=2)
        try:
            made = [*await generate(24, 5, "train", sandbox, 2), *await generate(8, 5, "validation", sandbox, 2)]
            return [await untold_and_verdict(item, sandbox) for item in made]
        finally:
            await sandbox.close()

    found = asyncio.run(run())
    assert len(found) == 32 and min(untold for untold, _ in found) >= 2
    assert {verdict for _, verdict in found} == {0.0}


async def untold_and_verdict(item, sandbox):
    """(wrong checks on calls that neither the issue nor the tests name, the score of a table of those that they do)"""
    environment = RepositoryEnvironment(sandbox, 20)
    await environment.reset({"repository": item.task.to_json()})
    text = "\n".join([item.task.issue, *(item.task.files[path] for path in item.task.files if "tests/" in path)])
    values = await environment.values()
    wrong = [check for value, check in zip(values, item.task.checks, strict=True) if value != check.expected]
    name = item.bug.partition(":")[0]
    told = [check for check in item.task.checks if check.call in text and check.call.startswith(f"{name}(")]
    assert len(told) == 4, "one of the issue, three of the tests"
    table = "\nkey = lambda *args: repr(args)\ntable = {"
    table += ", ".join(f"key{check.call.removeprefix(name)}: {check.expected}" for check in told)
    table += f"}}\nwrong = {name}\n{name} = lambda *args: table[key(*args)] if key(*args) in table else wrong(*args)\n"
    await environment.step("write", {"path": item.path, "text": item.task.files[item.path] + table})
    assert (await environment.step("run_tests", {})).status == "success", "the table has the tests pass"
    return len([check for check in wrong if check not in told]), await environment.score()


def test_too_many_functions_are_refused():
    with pytest.raises(UserError, match="1 to 18"):
        asyncio.run(generate(1, 1, "train", sandbox=None, functions=19))
