"""Environments of the package verifiers (0.1): its data as rows, its tools as tools, its rubric as the reward.

Not installed with this project, and imported only where one is named. An environment that answers the policy's texts
(MultiTurnEnv), or changes the arguments of calls (StatefulToolEnv), is refused: an episode here goes on after calls.
"""

import asyncio
import functools
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retool_mcore.data.schema import RL_SCHEMA, rl_row, write_rows
from retool_mcore.environments.gym import ABILITY
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool


@contextmanager
def _no_signal_handlers() -> Iterator[None]:
    """An environment sets handlers of signals, which Python allows a main thread alone; an episode's is another."""
    given = signal.signal
    if threading.current_thread() is not threading.main_thread():
        signal.signal = lambda number, handler: signal.getsignal(number)  # type: ignore[assignment]
    try:
        yield
    finally:
        signal.signal = given


@functools.cache
def _load(name: str, args_json: str) -> Any:
    try:
        import verifiers

        with _no_signal_handlers():
            found = verifiers.load_environment(name, **json.loads(args_json))
    except (ImportError, AttributeError, ValueError, RuntimeError) as error:
        raise UserError(f"the verifiers environment {name} cannot be loaded ({error}): install it first.") from error
    run = verifiers.ToolEnv | verifiers.SingleTurnEnv
    if isinstance(found, verifiers.StatefulToolEnv) or not isinstance(found, run):
        raise UserError(
            f"the verifiers environment {name} is a {type(found).__name__}: only SingleTurnEnv and ToolEnv are run."
        )
    return found


class VerifiersTools:
    """The tools of one environment, for `toolbox.use`. `name` and `args` are load_environment's. Raises UserError."""

    def __init__(self, name: str, args: Mapping[str, Any] | None = None):
        self.name, self.environment = name, _load(name, json.dumps(dict(args or {}), sort_keys=True))
        self.tools = [_VerifiersTool(self.environment, schema) for schema in self.environment.oai_tools or ()]

    def write_rows(
        self, path: Path | str, *, count: int = -1, split: str = "train", beside: Sequence[Tool] = ()
    ) -> None:
        """Write an RL parquet of the environment's training set, or its evaluation set where `split` is "test"; count:
        rows, -1 for all. beside: tools of the run that the rows list, too. The ground truth holds as JSON what the
        rubric asks for."""
        data = self.environment.get_eval_dataset(count) if split == "test" else self.environment.get_dataset(count)
        tools = [*self.tools, *beside]
        listed = {"tools": json.dumps([tool.schema for tool in tools]), "replies": "[]"} if tools else {}

        def made(index: int, row: Mapping) -> dict:
            extra = {"index": index, "split": split, "question": row["prompt"][-1]["content"]} | listed
            return rl_row(self.name, row["prompt"], ABILITY, json.dumps(dict(row)), **extra)

        write_rows((made(*numbered) for numbered in enumerate(data)), RL_SCHEMA, Path(path))


@dataclass(eq=False)
class _VerifiersTool(Tool):
    environment: Any
    schema: dict

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        return Reply(str((await self.environment.call_tool(self.name, arguments, ""))["content"]))


def rubric(sample: Any, *, name: str, args: Mapping[str, Any] | None = None) -> float:
    """What the environment's rubric gives a `Sample` (rewards/sample.py) whose row `write_rows` wrote, as a reward.

    The rubric reads each call and its reply as messages, then one message of all that the policy wrote outside of them.
    """
    environment = _load(name, json.dumps(dict(args or {}), sort_keys=True))
    completion: list[dict[str, Any]] = []
    for n, call in enumerate(call for call in sample.calls if not call.malformed):
        function = {"name": call.tool, "arguments": call.arguments or "{}"}
        asked = [{"id": str(n), "type": "function", "function": function}]
        completion.append({"role": "assistant", "content": "", "tool_calls": asked})
        completion.append({"role": "tool", "content": call.stdout or call.stderr, "tool_call_id": str(n)})
    completion.append({"role": "assistant", "content": sample.policy_text})

    async def scored() -> float:
        state = await environment.init_state({"task": name} | json.loads(sample.ground_truth), None, "")
        state["completion"] = completion
        await environment.rubric.score_rollout(state)
        return float(state["reward"])

    return asyncio.run(scored())
