"""Tasksets of verifiers 0.4 (`verifiers.v1`): tasks as rows, their toolsets as tools, their rewards as the reward.

Not installed with this project, and imported only where one is named. Run here is a taskset that one agent plays with
the tools of its toolsets, in a conversation that the task begins. Refused are tasksets that need more: a container, an
environment of their own (several agents, a user who answers), state that tools and rewards share.
"""

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from retool_mcore.data.function_schema import function_schema
from retool_mcore.data.kept import read_kept
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool


class TasksetEnvironment:
    """The taskset `name`, configured with `args`. Raises UserError for one that cannot be loaded or run here."""

    def __init__(self, name: str, args: Mapping[str, Any]):
        import verifiers.v1 as vf

        self.vf, self.name = vf, name
        try:
            self.taskset = vf.load_taskset(vf.taskset_config_type(name)(id=name, **args))
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the verifiers taskset {name} cannot be loaded ({reason}): install it first.") from error
        self.kind = type(self.taskset).task_type()
        self.config = self.taskset.config.task
        self._check()
        self.tools = [tool for number in range(len(self._servers())) for tool in self._tools(number)]

    def _check(self) -> None:
        vf, name = self.vf, self.name
        environment = vf.environment_class(name)
        if environment is not vf.SingleAgentEnv:
            raise UserError(
                f"the verifiers taskset {name} is played in an environment of its own, {environment.__name__}: only "
                "tasksets for a single agent are run."
            )
        if self.kind.NEEDS_CONTAINER:
            raise UserError(f"the verifiers taskset {name} needs a container: only tasks of conversations are run.")
        for server in self._servers():
            if type(server.state) is not vf.State:
                raise UserError(
                    f"the verifiers taskset {name} shares state between {type(server).__name__} and its rewards: only "
                    "toolsets without state of their own are run."
                )

    def _servers(self) -> list[Any]:
        return [*self.kind.toolsets(self.config), *type(self.taskset).toolsets(self.taskset.config)]

    def _tools(self, number: int) -> list[Tool]:
        server = self._servers()[number]

        async def listed() -> list[Any]:
            return await (await _served(server)).list_tools()

        return [_ToolsetTool(self, number, server.server_name, tool) for tool in asyncio.run(listed())]

    def tasks(self, numbers: range | None, split: str) -> Iterator[tuple[list[dict[str, str]], str]]:
        """(chat messages, the task's data as JSON) of the tasks of these numbers, None: of all, whatever the split.

        Raises UserError when all tasks of an endless taskset are requested, and for a task that its user begins.
        """
        if numbers is None and not self.taskset.bounded:
            raise UserError(f"the verifiers taskset {self.name} has no end: say how many tasks to take.")
        for task in islice(self.taskset, numbers.start, numbers.stop) if numbers is not None else self.taskset:
            prompt = task.data.prompt
            if not prompt:
                raise UserError(f"task {task.data.idx} of {self.name} has no prompt: its user begins the conversation.")
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [_plain(m) for m in prompt]
            if task.data.system_prompt:
                messages.insert(0, {"role": "system", "content": task.data.system_prompt})
            yield messages, task.data.model_dump_json(exclude_defaults=True)

    def task(self, data: str) -> Any:
        """The task that `tasks` gave as JSON."""
        return self.kind(self.kind.data_type().model_validate_json(data), self.config)

    async def score(self, data: str, completion: list[dict[str, Any]]) -> float:
        """The weighted sum of the task's rewards, for the messages that follow its prompt. Raises UserError where a
        reward needs the machine that the agent worked on."""
        vf, task = self.vf, self.task(data)
        for function in task.hooks("reward"):
            runtime = inspect.signature(function).parameters.get("runtime")
            if runtime is not None and runtime.default is inspect.Parameter.empty:
                raise UserError(
                    f"the reward {function.__name__} of {self.name} needs the agent's machine: it has none."
                )
        prompt = task.data.prompt
        first = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
        if task.data.system_prompt:
            first.insert(0, vf.SystemMessage(content=task.data.system_prompt))
        messages = [*first, *(_message(vf, message) for message in completion)]
        nodes = [
            vf.MessageNode(parent=n - 1 if n else None, message=message, sampled=n >= len(first) and _sampled(message))
            for n, message in enumerate(messages)
        ]
        trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            nodes=nodes,
            is_completed=True,
            ok=True,
        )
        await task.score(trace)
        return float(trace.reward)


class _ToolsetTool(Tool):
    """One tool of a toolset. Each episode has a toolset of its own, set up for its task."""

    def __init__(self, environment: TasksetEnvironment, number: int, server: str, tool: Any):
        name = f"{server}_{tool.name}" if server else tool.name
        self.environment, self.number, self.inner = environment, number, tool.name
        self.schema = function_schema(name, tool.description or name, dict(tool.input_schema))

    async def open(self, episode: Episode) -> None:
        key = f"verifiers:{self.number}"  # tools of one toolset share it
        if key not in episode.state:
            episode.state[key] = asyncio.ensure_future(self._begin(episode))
        await episode.state[key]

    async def _begin(self, episode: Episode) -> Any:
        server = self.environment._servers()[self.number]
        await server.setup()
        if (data := read_kept(episode.row).get("task")) is not None:
            await server.setup_task(self.environment.task(data).data)
        return await _served(server)

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        served = await episode.state[f"verifiers:{self.number}"]
        result = await served.call_tool(self.inner, arguments)
        text = "\n".join(part.text for part in result.content if getattr(part, "text", None) is not None)
        return Reply(text, status="error" if result.is_error else "success")


async def _served(server: Any) -> Any:
    """An MCP server of the toolset in this process."""
    from mcp.server.mcpserver import MCPServer

    made = MCPServer(server.server_name or type(server).__name__)
    server.register(made)
    return made


def _plain(message: Any) -> dict[str, str]:
    if message.role not in ("system", "user", "assistant") or not isinstance(message.content, str):
        raise UserError(f"a prompt of verifiers has a message of the role {message.role} that is no text.")
    return {"role": message.role, "content": message.content}


def _message(vf: Any, message: Mapping[str, Any]) -> Any:
    if message["role"] == "tool":
        return vf.ToolMessage(tool_call_id=message["tool_call_id"], content=message["content"])
    calls = [
        vf.ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return vf.AssistantMessage(content=message["content"], tool_calls=calls or None)


def _sampled(message: Any) -> bool:
    return message.role == "assistant"
