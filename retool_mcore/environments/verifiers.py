"""Environments of the package verifiers: its tasks as rows, its tools as tools, its rewards as the reward.

Both interfaces of the package are known: `verifiers.v1`, the only one of 0.4 (verifiers_tasksets.py), and the
environments of 0.1 below. Not installed with this project, and imported only where one is named.
"""

import asyncio
import functools
import json
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from retool_mcore.data.kept import COLUMN, kept_json
from retool_mcore.data.schema import RL_SCHEMA, rl_row, write_rows
from retool_mcore.environments.gym import ABILITY
from retool_mcore.environments.verifiers_tasksets import TasksetEnvironment
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool


@contextmanager
def _no_signal_handlers() -> Iterator[None]:
    """An environment sets handlers of signals, which Python allows a main thread alone; an episode's is another."""
    original = signal.signal
    if threading.current_thread() is not threading.main_thread():
        signal.signal = lambda number, handler: signal.getsignal(number)  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = original


@functools.cache
def _load(name: str, args_json: str) -> Any:
    args = json.loads(args_json)
    try:
        import verifiers

        with _no_signal_handlers():
            if hasattr(verifiers, "load_environment"):
                return _OldEnvironment(name, verifiers, args)
            return TasksetEnvironment(name, args)
    except ImportError as error:
        raise UserError(f"the verifiers environment {name} cannot be loaded ({error}): install it first.") from error


class VerifiersTools:
    """The tools of one environment, for `toolbox.use`.

    name: of verifiers 0.4 a taskset's, of 0.1 what load_environment takes; args: its configuration. Raises UserError
    for one that cannot be loaded, and for one that needs more than is run here.
    """

    def __init__(self, name: str, args: Mapping[str, Any] | None = None):
        self.name, self.environment = name, _load(name, json.dumps(dict(args or {}), sort_keys=True))
        self.tools: list[Tool] = self.environment.tools

    def write_rows(
        self, path: Path | str, *, count: int = -1, split: str = "train", beside: Sequence[Tool] = ()
    ) -> None:
        """Write an RL parquet of the environment's tasks; count: how many, -1 for all; beside: tools of the run that
        the rows list, too. Of verifiers 0.1 split "test" is the evaluation set."""
        numbers = None if count < 0 else range(count)
        write_rows(self._rows(numbers, split, beside), RL_SCHEMA, Path(path))

    def rows(
        self, seeds: range, split: str, prompt: Callable[[str], list[dict]], beside: Sequence[Tool] = ()
    ) -> Iterator[dict]:
        """An RL row for each of these tasks, by number, whose prompts are the tasks' own. Raises UserError where there
        are fewer."""
        made = list(self._rows(seeds, split, beside))
        if len(made) < len(seeds):
            raise UserError(
                f"the verifiers environment {self.name} has {seeds.start + len(made)} tasks, and data.episodes asks "
                f"for {seeds.stop}: lower it."
            )
        yield from made

    def _rows(self, numbers: range | None, split: str, beside: Sequence[Tool]) -> Iterator[dict]:
        tools = [*self.tools, *beside]
        listed = {"tools": json.dumps([tool.schema for tool in tools]), "replies": "[]"} if tools else {}
        first = 0 if numbers is None else numbers.start
        for index, (messages, task) in enumerate(self.environment.tasks(numbers, split), start=first):
            extra = {"index": index, "split": split, "question": messages[-1]["content"]}
            kept = {COLUMN: kept_json({"task": task})}
            yield rl_row(self.name, messages, ABILITY, "", **extra, **listed, **kept)


class _OldEnvironment:
    """An environment of verifiers 0.1, a SingleTurnEnv or ToolEnv."""

    def __init__(self, name: str, verifiers: Any, args: Mapping[str, Any]):
        try:
            self.made = verifiers.load_environment(name, **args)
        except (ImportError, AttributeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"the verifiers environment {name} cannot be loaded ({error}): install it first."
            ) from error
        run = verifiers.ToolEnv | verifiers.SingleTurnEnv
        if isinstance(self.made, verifiers.StatefulToolEnv) or not isinstance(self.made, run):
            raise UserError(
                f"the verifiers environment {name} is a {type(self.made).__name__}: only SingleTurnEnv and ToolEnv are "
                "run."
            )
        self.name = name
        self.tools = [_OldTool(self.made, schema) for schema in self.made.oai_tools or ()]

    def tasks(self, numbers: range | None, split: str) -> Iterator[tuple[list[dict], str]]:
        """See TasksetEnvironment.tasks."""
        count = -1 if numbers is None else numbers.stop
        data: Iterable[Mapping] = self.made.get_eval_dataset(count) if split == "test" else self.made.get_dataset(count)
        for row in islice(data, numbers.start if numbers else 0, None):
            yield row["prompt"], json.dumps(dict(row))

    async def score(self, task: str, completion: list[dict[str, Any]]) -> float:
        """Return the rubric's reward."""
        state = await self.made.init_state({"task": self.name} | json.loads(task), None, "")
        state["completion"] = completion
        await self.made.rubric.score_rollout(state)
        return float(state["reward"])


@dataclass(eq=False)
class _OldTool(Tool):
    environment: Any
    schema: dict

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        return Reply(str((await self.environment.call_tool(self.name, arguments, ""))["content"]))


def rubric(sample: Any, *, name: str, args: Mapping[str, Any] | None = None) -> float:
    """Return the environment's reward for a `Sample` (rewards/sample.py) of one of its rows.

    Its reward functions read each call and its reply as messages, then one message of all that the policy wrote outside
    of them.
    """
    if "task" not in sample.extra:
        raise UserError(f"a row of {sample.source} holds no task of verifiers: prepare its file again.")
    environment = _load(name, json.dumps(dict(args or {}), sort_keys=True))
    completion: list[dict[str, Any]] = []
    for n, call in enumerate(call for call in sample.calls if not call.malformed):
        function = {"name": call.tool, "arguments": call.arguments or "{}"}
        asked = [{"id": str(n), "type": "function", "function": function}]
        completion.append({"role": "assistant", "content": "", "tool_calls": asked})
        completion.append({"role": "tool", "content": call.stdout or call.stderr, "tool_call_id": str(n)})
    completion.append({"role": "assistant", "content": sample.policy_text})
    return asyncio.run(environment.score(sample.extra["task"], completion))


rubric.needs_answer = False  # type: ignore[attr-defined]
