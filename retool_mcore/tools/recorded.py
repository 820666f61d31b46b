"""Tools that only the data describes: a call is checked against the row's schema and answered from its recording."""

import json
from dataclasses import dataclass

from retool_mcore.data.untrusted import same_json
from retool_mcore.tools.base import Episode, Reply, Tool


@dataclass
class ReplayTable:
    """Answers for the tools of a row (`extra_info.tools`) as Toolbox.rows.

    Without `replies` every call ends the episode: what is learnt is the call, as in Tool-N1 and ToolRL. With it, a call
    that `extra_info.replies` (JSON list of {name, arguments, reply}) recorded gets that reply, and another ends it.
    """

    replies: bool = False

    @property
    def one_turn(self) -> bool:
        return not self.replies

    def tool(self, schema: dict) -> Tool:
        """The tool that a row describes."""
        return _Recorded(schema, self.replies)


@dataclass(eq=False)
class _Recorded(Tool):
    schema: dict
    replies: bool

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        for entry in json.loads(episode.row.get("replies") or "[]") if self.replies else []:
            if entry["name"] == self.name and same_json(entry["arguments"], arguments):
                return Reply(entry["reply"], duration_s=0.0)
        return Reply("", duration_s=0.0, ends=True)
