"""A generated task set: small Python repositories with tests and one injected bug. No download.

Every task is verified in the sandbox when it is made: its tests and its hidden checks fail before the fix, and the
reference fix passes both. A function that gets a bug is in the training or the validation set, never in both;
any function may be in a repository without a bug.
"""

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from retool_mcore.environments.bugs import Bug, bugs
from retool_mcore.environments.functions import FUNCTIONS, Function
from retool_mcore.environments.repository import TESTS, Check, RepositoryEnvironment, RepositoryTask
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import Sandbox, Status

DATA_SOURCE = "repo_bugs"
TIMEOUT_S = 10.0
_PACKAGES = ("toolkit", "ledger", "almanac", "kernel", "basics", "workshop", "counting", "letters")
_MODULES = ("core", "helpers", "shapes", "series", "checks", "common")
_DRAWS = 40  # of bugs for one task: many slips change nothing that a test sees
_VISIBLE, _HIDDEN = 3, 6
_VALIDATION_SHARE = 0.25


@dataclass(frozen=True)
class RepoBug:
    """A verified task. `path` and `fixed`: the file with the bug, and its text without; `bug`: what was done to it."""

    task: RepositoryTask
    path: str
    fixed: str
    bug: str


@dataclass(frozen=True)
class _Case:
    function: str
    call: str
    expected: str


async def generate(count: int, seed: int, split: str, sandbox: Sandbox, functions: int = 4) -> list[RepoBug]:
    """`count` verified tasks of a seed and split ("train" or "validation"), each with so many functions.

    Raises UserError when the sandbox does not agree, after many draws, that a bug was made.
    """
    if not 1 <= functions <= len(FUNCTIONS):
        raise UserError(f"a repository of repo_bugs has 1 to {len(FUNCTIONS)} functions, not {functions}.")
    return list(await asyncio.gather(*(_one(index, seed, split, sandbox, functions) for index in range(count))))


async def _one(index: int, seed: int, split: str, sandbox: Sandbox, functions: int) -> RepoBug:
    for draw in range(_DRAWS):
        rng = random.Random(f"{DATA_SOURCE}-{seed}-{split}-{index}-{draw}")
        wrong = rng.choice([name for name in sorted(FUNCTIONS) if split_of(name) == split])
        chosen = [FUNCTIONS[name] for name in (wrong, *rng.sample(sorted(FUNCTIONS.keys() - {wrong}), functions - 1))]
        slips = bugs(chosen[0].source)
        if slips and (made := await _verified(rng, chosen, rng.choice(slips), sandbox)):
            return made
    raise UserError(f"no bug out of {_DRAWS} was found by the tests: does the sandbox run unittest?")


def split_of(function: str) -> str:
    digest = hashlib.sha256(function.encode()).digest()
    return "validation" if digest[0] < 256 * _VALIDATION_SHARE else "train"


async def _verified(rng: random.Random, functions: Sequence[Function], bug: Bug, sandbox: Sandbox) -> RepoBug | None:
    package = rng.choice(_PACKAGES)
    modules = rng.sample(_MODULES, min(2, len(functions)))
    homes = {function.name: modules[n % len(modules)] for n, function in enumerate(functions)}
    cases = [case for function in functions for case in _cases(rng, function)]
    visible = [case for n, case in enumerate(cases) if n % (_VISIBLE + _HIDDEN) < _VISIBLE]

    def files(broken: bool) -> dict[str, str]:
        text = {f"{package}/__init__.py": "", f"{TESTS}/__init__.py": ""}
        for module in modules:
            own = [function for function in functions if homes[function.name] == module]
            sources = [bug.apply(f.source) if broken and f is functions[0] else f.source for f in own]
            text[f"{package}/{module}.py"] = "\n\n".join(sources)
            tests = [case for case in visible if homes[case.function] == module]
            text[f"{TESTS}/test_{module}.py"] = _test_file(package, module, own, tests)
        return text

    faulty, reference = files(True), files(False)
    # The visible calls are checked, too: a program can forge what the tests report.
    setups = {name: f"from {package}.{home} import {name}" for name, home in homes.items()}
    checks = tuple(Check(setups[case.function], case.call, case.expected) for case in cases)
    path = f"{package}/{homes[functions[0].name]}.py"
    environment = RepositoryEnvironment(sandbox, TIMEOUT_S)
    await environment.reset({"repository": RepositoryTask("", faulty, checks).to_json()})
    pairs = zip(await environment.values(), cases, strict=False)
    wrong = [(value, case) for value, case in pairs if value != case.expected and case not in visible]
    # The issue names one; a table of it and of the visible tests' values must still fail.
    if len(wrong) < 3 or (await environment.step("run_tests", {})).status != Status.ERROR:
        return None
    seen, check = min(wrong, key=lambda pair: len(pair[0] + pair[1].call))
    issue = f"In {package}, {check.call} gives {seen}, expected {check.expected}. Fix the bug."
    environment.files[path] = reference[path]
    if await environment.score() != 1.0:
        return None
    await environment.close()
    return RepoBug(RepositoryTask(issue, faulty, checks), path, reference[path], f"{functions[0].name}: {bug.name}")


def _cases(rng: random.Random, function: Function) -> list[_Case]:
    """Return all the cases that a function has, visible and hidden, no call twice where the arguments allow it."""
    names: dict = {}
    exec(function.source, names)
    cases: dict[str, _Case] = {}
    for _ in range(20 * (_VISIBLE + _HIDDEN)):
        arguments = function.arguments(rng)
        call = f"{function.name}({', '.join(map(repr, arguments))})"
        # From the text, so that the function gets its own objects.
        cases[call] = _Case(function.name, call, repr(eval(call, names)))
        if len(cases) == _VISIBLE + _HIDDEN:
            break
    return list(cases.values())


def _test_file(package: str, module: str, functions: Sequence[Function], cases: Sequence[_Case]) -> str:
    names = ", ".join(sorted(function.name for function in functions))
    lines = ["import unittest", "", f"from {package}.{module} import {names}", "", ""]
    lines += [f"class Test{module.title()}(unittest.TestCase):"]
    for function in functions:
        lines += [f"    def test_{function.name}(self):"]
        own = [case for case in cases if case.function == function.name]
        lines += [f"        self.assertEqual({case.call}, {case.expected})" for case in own]
        lines += [""]
    return "\n".join(lines).rstrip() + "\n"
