"""The interface of a tool: a function schema that the policy reads, and a coroutine that answers a call."""

import asyncio
import importlib
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from retool_mcore.data.function_schema import function_schema
from retool_mcore.errors import UserError

__all__ = ["Episode", "Reply", "Tool", "function_schema"]


@dataclass(frozen=True)
class Reply:
    """The reply to a call.

    `text` is what the policy reads. `status` is "success" or another word of sandbox.base.Status. `duration_s` is
    measured by the caller when it is None. `stdout`, `stderr` and `value` go into the record; when both of the first
    two are None, `text` is recorded as the one or, after a failure, as the other. `ends`: the episode is over, and
    `text` is not shown.
    """

    text: str
    status: str = "success"
    duration_s: float | None = None
    stdout: str | None = None
    stderr: str | None = None
    value: str | None = None
    ends: bool = False


@dataclass
class Episode:
    """One trajectory as its tools see it.

    `row` is the data set's `extra_info`, `session` a name that no other trajectory has; `state` is the tools' own, one
    entry a tool. `opened` belongs to the toolbox: the running or finished `Tool.open` of each tool called so far.
    """

    row: Mapping[str, Any] = field(default_factory=dict)
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    state: dict[str, Any] = field(default_factory=dict)
    opened: dict[str, asyncio.Future] = field(default_factory=dict, repr=False)


class Tool:
    """One tool. A subclass sets `schema` and writes `call`; the rest is optional.

    `schema` is an OpenAI function schema: {"type": "function", "function": {"name", "description", "parameters"}}.
    One object serves all episodes of a process, many at once, so what belongs to an episode lives in
    `episode.state[self.name]`. `parallel`: calls of one turn may run at the same time. `own_bounds`: the tool bounds
    its own calls, in place of `toolbox.timeout_s`, and tells its failures in its replies; an exception is not caught.
    `answers_texts`: the policy does not call it; it answers, as the user, each text that would end an episode of a row
    that names it, with the text as the argument `action`.
    """

    schema: dict
    parallel = True
    own_bounds = False
    answers_texts = False

    @property
    def name(self) -> str:
        return self.schema["function"]["name"]

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        """Answer a call whose `arguments` fit the schema. An exception becomes an error that the policy reads."""
        raise NotImplementedError

    async def open(self, episode: Episode) -> None:
        """Called once an episode, before its first call is answered."""

    async def release(self, episode: Episode) -> None:
        """Called at the end of an episode in which `open` came to its end."""

    async def close(self) -> None:
        """Release what the tool holds in this process."""


def load(path: str, what: str) -> Callable[..., Any]:
    """Return the object that a dotted path names. Raises UserError, which calls it `what`, for one that leads
    nowhere."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"the {what} {path} cannot be loaded ({error}): give package.module.Class.") from error


async def result_of(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return a function's result: a coroutine function is awaited, any other runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **named)
    return await asyncio.to_thread(function, *arguments, **named)
