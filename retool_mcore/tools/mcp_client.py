"""Tools of a server that speaks the Model Context Protocol, through the official SDK (`mcp`, version 2)."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress

from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

from retool_mcore.data.function_schema import function_schema
from retool_mcore.errors import UserError
from retool_mcore.tools.base import Episode, Reply, Tool


class McpServer:
    """The tools that one server lists: `command` with `args` and `env` (stdio), or `url` (streamable HTTP).

    One session a process, in a thread with an event loop of its own: the SDK binds a session to the task that opened
    it, and rollouts come from many. `names` keeps some of the tools; `connect_s` bounds the start. Raises UserError
    when the server cannot be reached or lacks one of the names.
    """

    def __init__(
        self,
        command: str | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        names: Sequence[str] | None = None,
        connect_s: float = 30.0,
    ):
        if (command is None) == (url is None):
            raise UserError("an MCP server needs either a command (stdio) or a url (streamable HTTP).")
        self.where = url or " ".join([command, *args])
        server = url or StdioServerParameters(command=command, args=list(args), env=dict(env or {}) or None)
        self._open = ExitStack()
        self._portal = self._open.enter_context(start_blocking_portal())
        try:
            session = self._portal.wrap_async_context_manager(_session(server, connect_s))
            self._client, listed = self._open.enter_context(session)
            if missing := set(names or ()) - {tool.name for tool in listed}:
                raise RuntimeError(f"it has no tool {sorted(missing)[0]!r}")
        except Exception as error:
            self.shut()
            reason = f"no answer within {connect_s:g} s" if isinstance(error, TimeoutError) else _first_line(error)
            raise UserError(f"the MCP server {self.where} cannot be used: {reason}.") from error
        self.tools = [McpTool(self, tool) for tool in listed if names is None or tool.name in names]

    async def ask(self, name: str, arguments: dict):
        """The server's CallToolResult, awaited from any event loop. Raises RuntimeError when the session has ended."""
        if self._portal is None:
            raise RuntimeError(f"the MCP server {self.where} has ended")
        return await asyncio.wrap_future(self._portal.start_task_soon(self._client.call_tool, name, arguments))

    def shut(self) -> None:
        """End the session, and a server that was started for it."""
        self._portal = None
        with suppress(Exception):  # of a server that ended before
            self._open.close()


@asynccontextmanager
async def _session(server: str | StdioServerParameters, connect_s: float) -> AsyncIterator[tuple[Client, list]]:
    """A client in its session, and what the server lists."""
    async with AsyncExitStack() as stack:
        async with asyncio.timeout(connect_s):
            client = await stack.enter_async_context(Client(server))
            page = await client.list_tools()
            tools = list(page.tools)
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                tools += page.tools
        yield client, tools


class McpTool(Tool):
    """One tool of a server, as the server describes it."""

    def __init__(self, server: McpServer, listed):
        self.server = server
        self.schema = function_schema(listed.name, listed.description or "", listed.input_schema)

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        result = await self.server.ask(self.name, arguments)
        parts = [part.text if part.type == "text" else f"[{part.type} content]" for part in result.content]
        return Reply("\n".join(parts), status="error" if result.is_error else "success")

    async def close(self) -> None:
        await asyncio.to_thread(self.server.shut)


def _first_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).splitlines()[0]
