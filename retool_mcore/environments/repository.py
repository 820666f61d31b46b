"""A task in a small Python repository: the policy edits it, and is right iff the tests pass afterwards (SkyRL v0).

The repository lives in this process as text, for one trajectory: `reset` copies the task's files, `close` drops them.
Programs and tests get a copy in a sandbox run of their own, so nothing that they do outlives them.

What a forged verdict would have to get past: the hidden checks are calls whose expected values never enter the sandbox.
Only the values that the calls gave come out, and are compared here: a program would have to know the right ones. The
visible tests are put back before they count, but a program can forge their report: what matters needs a check as well.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from retool_mcore.data.formats import TOOL
from retool_mcore.data.function_schema import function_schema
from retool_mcore.data.untrusted import read_json
from retool_mcore.environments import files as edits
from retool_mcore.environments.files import RepositoryError
from retool_mcore.errors import UserError
from retool_mcore.sandbox.base import ERROR_LINES, Result, Sandbox, Status
from retool_mcore.tools.base import Reply

TESTS = "tests"


def _tool(name: str, description: str, properties: Mapping | None = None, required: tuple[str, ...] = ()) -> dict:
    parameters = {"type": "object", "properties": dict(properties or {}), "required": list(required)}
    return function_schema(name, description, parameters | {"additionalProperties": False})


_PATH = {"type": "string", "description": "Path inside the repository, as list_files shows it."}
SCHEMAS = [
    _tool("list_files", "List the files of the repository."),
    _tool(
        "view",
        "Show a file, or some of its lines, with line numbers.",
        {
            "path": _PATH,
            "start": {"type": "integer", "minimum": 1, "description": "First line; 1 when left out."},
            "end": {"type": "integer", "minimum": 1, "description": "Last line; the file's last when left out."},
        },
        required=("path",),
    ),
    _tool(
        "search",
        "Show every line that holds a text.",
        {"text": {"type": "string", "description": "What to look for, literally."}},
        required=("text",),
    ),
    _tool(
        "replace",
        "Replace a piece of a file. The piece must stand there exactly once.",
        {
            "path": _PATH,
            "old": {"type": "string", "description": "The text that stands there, without line numbers."},
            "new": {"type": "string", "description": "What to put in its place."},
        },
        required=("path", "old", "new"),
    ),
    _tool(
        "write",
        "Make or overwrite a whole file.",
        {"path": _PATH, "text": {"type": "string", "description": "The whole content."}},
        required=("path", "text"),
    ),
    _tool("run_tests", "Run the repository's tests and show what fails."),
    TOOL,
    _tool("submit", "End the work: the repository is scored as it is now."),
]

# unittest, because the sandbox's interpreter has it everywhere. The time that a run took says nothing about the code.
_RUN_TESTS = f"""\
import io, re, sys, unittest
sys.path.insert(0, ".")
suite = unittest.defaultTestLoader.discover({TESTS!r}, top_level_dir=".")
report = io.StringIO()
outcome = unittest.TextTestRunner(stream=report, verbosity=0).run(suite)
print(re.sub(r" in [0-9.]+s", "", report.getvalue()).strip())
if not outcome.wasSuccessful() or not outcome.testsRun:
    raise SystemExit(1)
"""


def _run_checks(calls: str, mark: str) -> str:
    """Return the program that prints `mark` and then what `calls` gave, a JSON text of their `setup` and `call`."""
    return f"""\
import json, sys
sys.path.insert(0, ".")
values = []
for call in json.loads({calls!r}):
    names = {{}}
    try:
        exec(call["setup"], names)
        values.append(repr(eval(call["call"], names)))
    except Exception as error:
        values.append(type(error).__name__)
print({mark!r} + json.dumps(values))
"""


@dataclass(frozen=True)
class Check:
    """A hidden check: after `setup` (imports) the expression `call` must have the repr `expected`, or raise an
    exception of that name."""

    setup: str
    call: str
    expected: str


@dataclass(frozen=True)
class RepositoryTask:
    """`issue`: the task that the policy reads. `files`: the repository, {path: text}, its tests under tests/.

    A task with neither test files nor checks is refused: it could not be scored.
    """

    issue: str
    files: Mapping[str, str]
    checks: tuple[Check, ...]

    def __post_init__(self):
        if not self.checks or not any(path.startswith(f"{TESTS}/") for path in self.files):
            raise UserError(f"a repository task needs a file under {TESTS}/ and at least one hidden check.")

    def to_json(self) -> str:
        return json.dumps({"issue": self.issue, "files": dict(self.files), "checks": [*map(asdict, self.checks)]})

    @classmethod
    def from_json(cls, text: str) -> "RepositoryTask":
        """Raises UserError when `text` is no task."""
        try:
            content = json.loads(text)
            checks = tuple(Check(**check) for check in content["checks"])
            return cls(content["issue"], {str(k): str(v) for k, v in content["files"].items()}, checks)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"is no repository task ({error}): prepare the data again"
            raise UserError(f"extra_info.repository {message}.") from error


@dataclass(eq=False)
class RepositoryEnvironment:
    """One trajectory's repository. reset -> step* -> score -> close; `timeout_s` bounds each run in the sandbox.

    `sandbox_failed`: whether the sandbox itself did in any of the runs, so that the score says nothing.
    """

    tools = SCHEMAS

    sandbox: Sandbox
    timeout_s: float
    error_lines: int = ERROR_LINES
    task: RepositoryTask | None = field(default=None, init=False)
    files: dict[str, str] = field(default_factory=dict, init=False)
    sandbox_failed: bool = field(default=False, init=False)
    _first: Reply | None = field(default=None, init=False)  # the tests' report on the repository as it was given

    async def reset(self, row: Mapping) -> str:
        """Take up the task of a row (`repository`: RepositoryTask.to_json) and return the policy's instructions."""
        self.task = RepositoryTask.from_json(row["repository"])
        self.files, self._first, self.sandbox_failed = dict(self.task.files), None, False
        return self.task.issue

    async def prepare(self) -> None:
        """Run the tests once, before the policy acts. Raises RuntimeError unless they ran and failed: such a
        trajectory would say nothing about the policy."""
        self._first = await self._tests()
        if self._first.status != Status.ERROR:
            raise RuntimeError(f"the tests of an untouched repository gave {self._first.status}, not a failure")

    async def step(self, tool: str, arguments: Mapping) -> Reply:
        """Answer one call, whose arguments fit the tool's schema. What the policy does wrong is an observation."""
        if self.task is None:
            raise RuntimeError("the environment was not reset")
        try:
            match tool:
                case "list_files" | "view" | "search" | "replace" | "write":
                    return Reply(getattr(edits, tool)(self.files, **arguments))
                case "run_tests":
                    return self._first if self._first and self._untouched() else await self._tests()
                case "code_interpreter":
                    return self._observe(await self._run('import sys\nsys.path.insert(0, ".")\n' + arguments["code"]))
                case "submit":
                    return Reply("", ends=True)
        except RepositoryError as error:
            return Reply(f"Error: {error}", status=str(Status.ERROR))
        raise ValueError(f"no tool is called {tool!r}")

    async def score(self) -> float:
        """1.0 iff the task's own tests, as they were, and all hidden checks pass; else 0.0."""
        if self.task is None or self._untouched():
            return 0.0  # every task is verified to fail as it is given
        tests = {path: text for path, text in self.task.files.items() if path.startswith(f"{TESTS}/")}
        own = {path: text for path, text in self.files.items() if not path.startswith(f"{TESTS}/")}
        self.files = own | tests
        if await self.values() != [check.expected for check in self.task.checks]:
            return 0.0
        return float((await self._run(_RUN_TESTS)).status is Status.SUCCESS)

    async def values(self) -> list[str]:
        """Return the values of the hidden checks' calls on the repository as it is; [] when the run did not end
        well."""
        mark = secrets.token_hex(16)
        calls = json.dumps([{"setup": check.setup, "call": check.call} for check in self.task.checks])
        result = await self._run(_run_checks(calls, mark))
        lines = [line for line in result.stdout.splitlines() if line.startswith(mark)]
        try:
            reported = read_json(lines[-1].removeprefix(mark)) if lines else []
        except ValueError:
            return []
        return reported if isinstance(reported, list) else []

    async def close(self) -> None:
        """Drop the repository."""
        self.task, self.files = None, {}

    def _untouched(self) -> bool:
        return self.files == self.task.files

    async def _tests(self) -> Reply:
        result = await self._run(_RUN_TESTS)
        if result.status in (Status.SUCCESS, Status.ERROR) and result.stdout.strip():
            return Reply(result.stdout.strip(), str(result.status))  # without the exit's own traceback
        return self._observe(result)

    async def _run(self, program: str) -> Result:
        copy = {path: text.encode("utf-8", "replace") for path, text in self.files.items()}
        result = await self.sandbox.run(program, timeout_s=self.timeout_s, files=copy)
        self.sandbox_failed |= result.status is Status.SANDBOX
        return result

    def _observe(self, result: Result) -> Reply:
        return Reply(result.observation(self.error_lines), str(result.status))
