"""Tools of a server that speaks the Model Context Protocol, through the official SDK (`mcp`, version 2)."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Mapping, Sequence

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
        self._server = url or StdioServerParameters(command=command, args=list(args), env=dict(env or {}) or None)
        self._listed: concurrent.futures.Future = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        try:
            listed = self._listed.result(connect_s)
        except Exception as error:
            self.shut()
            reason = f"no answer within {connect_s:g} s" if isinstance(error, TimeoutError) else _first_line(error)
            raise UserError(f"the MCP server {self.where} cannot be used: {reason}.") from error
        if missing := set(names or ()) - {tool.name for tool in listed}:
            self.shut()
            raise UserError(f"the MCP server {self.where} has no tool {sorted(missing)[0]!r}.")
        self.tools = [McpTool(self, tool) for tool in listed if names is None or tool.name in names]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._task = self._loop.create_task(self._serve())
            self._loop.run_until_complete(self._task)
        except (Exception, asyncio.CancelledError) as error:
            if not self._listed.done():
                self._listed.set_exception(RuntimeError(_first_line(error)))
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with Client(self._server) as self._client:
            page = await self._client.list_tools()
            tools = [*page.tools]
            while page.next_cursor:
                page = await self._client.list_tools(cursor=page.next_cursor)
                tools += page.tools
            self._listed.set_result(tools)
            await self._stop.wait()

    async def ask(self, name: str, arguments: dict):
        """The server's CallToolResult, awaited from any event loop. Raises RuntimeError when the session has ended."""
        if not self._thread.is_alive():
            raise RuntimeError(f"the MCP server {self.where} has ended")
        call = asyncio.run_coroutine_threadsafe(self._client.call_tool(name, arguments), self._loop)
        return await asyncio.wrap_future(call)

    def shut(self, wait_s: float = 5.0) -> None:
        """End the session, and a server that was started for it."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join(wait_s)

    def _end(self) -> None:
        if self._listed.done() and not self._listed.exception():
            self._stop.set()
        else:
            self._task.cancel()


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
