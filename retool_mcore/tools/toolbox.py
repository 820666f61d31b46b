"""The tools of a run: made from the configuration, chosen for a row of the data, called within bounds."""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from retool_mcore.data.formats import TOOL
from retool_mcore.data.function_schema import check_schema, row_tools
from retool_mcore.data.untrusted import canonical_json
from retool_mcore.errors import ALIKE, FirstErrors, UserError, describe, identity
from retool_mcore.tools.base import Episode, Reply, Tool, load

CODE = "retool_mcore.tools.code.CodeInterpreter"
TIMEOUT_S = 30.0
_MAX_ERROR = 300
_TEXTS = ("text", "stdout", "stderr", "value")  # of a reply


class Toolbox:
    """Tools by name. `timeout_s` bounds one call of a tool without bounds of its own, its `open` included.

    `rows` serves tools that only a row of the data knows: an object with `tool(schema) -> Tool` and `one_turn`
    (tools/recorded.py). `first` notes by name whether a tool has worked yet; one that has not, and fails with the same
    error in `alike` episodes, ends the run. `partner` answers the texts of an episode, None: a text ends it; `partners`
    are those that rows may name. Raises UserError for two tools of one name or a schema that is none.
    """

    def __init__(
        self,
        tools: Iterable[Tool],
        timeout_s: float = TIMEOUT_S,
        rows: Any = None,
        first: dict[str, FirstErrors] | None = None,
    ):
        self.timeout_s = timeout_s
        self.rows = rows
        self.alike = ALIKE
        self.first = {} if first is None else first
        self.tools: dict[str, Tool] = {}
        self.partners: dict[str, Tool] = {}
        self.partner: Tool | None = None
        for tool in tools:
            check_schema(tool.schema)
            if tool.name in self._all:
                raise UserError(f"two tools are called {tool.name!r}: give each tool a name of its own.")
            (self.partners if tool.answers_texts else self.tools)[tool.name] = tool

    @property
    def _all(self) -> dict[str, Tool]:
        return self.tools | self.partners

    @property
    def code_only(self) -> bool:
        return self.rows is None and [tool.schema for tool in self.tools.values()] == [TOOL]

    @property
    def text_only(self) -> bool:
        """Whether the policy has nothing to call."""
        return self.rows is None and not self.tools

    @property
    def one_turn(self) -> bool:
        """Whether a malformed call ends the episode, because no tool would answer a better one either."""
        return self.rows is not None and self.rows.one_turn

    @property
    def schemas(self) -> list[dict] | None:
        """The function schemas for a prompt and for `Format.parse`; None: the format's own, the code interpreter."""
        return None if self.code_only else [tool.schema for tool in self.tools.values()]

    def for_row(self, row: Mapping[str, Any] | None) -> "Toolbox":
        """The tools of a row: those that its `tools` (JSON list of function schemas) name, or all when it has none.

        A tool of the run stands in for the row's of the same name, so that the call is answered by what was described.
        The row's `environment` names what answers its texts. Raises UserError for a tool or an environment that nothing
        answers.
        """
        schemas, environment = row_tools(row), (row or {}).get("environment")
        if schemas is None and not environment:
            return self
        chosen: list[Tool] = [] if schemas is not None else [*self.tools.values()]
        rows = None if schemas else self.rows
        for schema in schemas or ():
            name = schema["function"]["name"]
            if name in self.tools:
                chosen.append(self.tools[name])
            elif self.rows is not None:
                chosen.append(self.rows.tool(schema))
                rows = self.rows
            else:
                raise UserError(
                    f"a row of the data lists the tool {name!r}, which no entry of toolbox.use answers: "
                    "add the tool, or take toolbox=replay, which checks calls and answers only recorded ones."
                )
        toolbox = Toolbox(chosen, self.timeout_s, rows, self.first)
        toolbox.alike = self.alike
        if environment:
            if environment not in self.partners:
                raise UserError(
                    f"a row of the data is an episode of the environment {environment!r}, which no entry of "
                    "toolbox.use is: add it there, under this name."
                )
            toolbox.partner = self.partners[environment]
            toolbox.partners = {environment: toolbox.partner}
        return toolbox

    async def answer(self, text: str, episode: Episode) -> Reply:
        """Return the partner's answer to a text of the policy that calls nothing; errors as in `call`."""
        assert self.partner is not None, "no environment answers the texts of this episode"
        return await self.call(self.partner.name, {"action": text}, episode)

    async def call(self, name: str, arguments: dict, episode: Episode) -> Reply:
        """The tool's reply to a checked call. What a tool without `own_bounds` raises becomes an error to read.

        UserError goes through: it says that the run itself is set up wrongly. A tool that has never worked, and fails
        with the same error in `alike` episodes, raises NeverWorked.
        """
        tool = self._all[name]
        clock = time.perf_counter()
        bound = asyncio.timeout(None if tool.own_bounds else self.timeout_s)
        first = self.first.setdefault(name, FirstErrors(self.alike))
        called = False
        try:
            async with bound:
                if name not in episode.opened:
                    episode.opened[name] = asyncio.ensure_future(tool.open(episode))
                # Shielded, because calls of one turn wait for the same opening and each has a limit of its own.
                await asyncio.shield(episode.opened[name])
                called = True
                reply = await tool.call(arguments, episode)
            first.worked()
            if not isinstance(reply, Reply):
                raise UserError(f"the tool {name} returned {type(reply).__name__}: expected a Reply of tools/base.py.")
        except UserError:
            raise
        except Exception as error:
            if tool.own_bounds:
                raise
            if bound.expired():
                reply = Reply(f"Error: {name} gave no answer within {self.timeout_s:g} s.", status="timeout")
            else:
                shown = canonical_json(arguments) if called and arguments else None
                same = identity(error, message=True)  # which tells a wrong city from another
                first.failed(f"the tool {name}", same, describe(error), episode.session, shown)
                # A tool is another's code, and its failure is the policy's to read, not the step's end.
                reply = Reply(f"Error: {type(error).__name__}: {error}"[:_MAX_ERROR], status="error")
        texts: dict[str, Any] = {name: _as_text(getattr(reply, name)) for name in _TEXTS}
        spent = time.perf_counter() - clock if reply.duration_s is None else reply.duration_s
        return replace(reply, **texts, duration_s=spent)

    async def release(self, episode: Episode) -> None:
        """End an episode for the tools that it opened; an opening that still runs is cancelled."""
        for name, opening in episode.opened.items():
            if not opening.done():
                opening.cancel()
            elif not opening.cancelled() and opening.exception() is None:
                await self._all[name].release(episode)

    async def close(self) -> None:
        for tool in self._all.values():
            await tool.close()


class HeardTools(Toolbox):
    """The tools of `inner`; heard: gets the name, the arguments and the reply of each call that has ended."""

    def __init__(self, inner: Toolbox, heard: Callable[[str, dict, Reply], None]):
        vars(self).update(vars(inner))
        self.heard = heard

    async def call(self, name: str, arguments: dict, episode: Episode) -> Reply:
        reply = await super().call(name, arguments, episode)
        self.heard(name, arguments, reply)
        return reply


def _as_text(text: str | None) -> str | None:
    # Half of a surrogate pair can neither be encoded into tokens nor written to a record.
    return None if text is None else text.encode(errors="replace").decode()


def create_toolbox(config: Mapping | None, **run: Any) -> Toolbox:
    """The toolbox of the section `toolbox`: {use: [{path, args}], timeout_s}; None: the code interpreter alone.

    Each `path` is package.module.Class. The class is called with `args`, and with those of `run` (sandbox, timeout_s,
    error_lines) that its constructor names and `args` leaves out. The result is a Tool, has a list `tools` of them, or
    has `tool(schema)` for tools that rows describe. Raises UserError for what cannot be made.
    """
    config = config or {"use": [{"path": CODE}]}
    tools: list[Tool] = []
    rows = None
    for entry in config["use"]:
        made = make(entry, run)
        if isinstance(made, Tool):
            tools.append(made)
        elif hasattr(made, "tools"):
            tools.extend(made.tools)
        elif hasattr(made, "tool"):
            rows = made
        else:
            raise UserError(f"{entry['path']} is no tool: give a subclass of retool_mcore.tools.base.Tool.")
    if not tools and rows is None:  # an environment that answers texts is a tool here
        raise UserError("toolbox.use is empty: name at least one tool, or set rollout.format=none.")
    return Toolbox(tools, config.get("timeout_s") or TIMEOUT_S, rows)


def toolbox_of(config: DictConfig, sandbox: Any) -> Toolbox:
    """The toolbox of a stage's configuration; a replayed one of an older release has none."""
    section = OmegaConf.to_container(config.toolbox, resolve=True) if "toolbox" in config else None
    defaults = {"timeout_s": config.sandbox.timeout_s, "error_lines": config.rollout.error_lines}
    return create_toolbox(section, sandbox=sandbox, **defaults)


def make(entry: Mapping, run: Mapping[str, Any]) -> Any:
    """Make the object that an entry {path, args} of toolbox.use names, called as `create_toolbox` says. Raises
    UserError."""
    path, arguments = entry["path"], dict(entry.get("args") or {})
    maker = load(str(path), "tool")
    try:
        named = inspect.signature(maker).parameters
        passed = {key: value for key, value in run.items() if key in named and key not in arguments}
        inspect.signature(maker).bind(**passed, **arguments)
    except (TypeError, ValueError) as error:
        raise UserError(f"the args of tool {path} do not fit: {error}.") from error
    return maker(**passed, **arguments)
