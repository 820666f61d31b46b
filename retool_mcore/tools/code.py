"""The code interpreter: a sandbox as a tool."""

from dataclasses import dataclass

from retool_mcore.data.formats import TOOL
from retool_mcore.sandbox.base import ERROR_LINES, Sandbox
from retool_mcore.tools.base import Episode, Reply, Tool


@dataclass(eq=False)
class CodeInterpreter(Tool):
    """Runs `arguments["code"]` in the sandbox for at most `timeout_s` seconds; of an error `error_lines` are shown."""

    sandbox: Sandbox
    timeout_s: float | None = None
    error_lines: int = ERROR_LINES

    schema = TOOL
    parallel = False  # programs of one turn run in the order in which they were written
    own_bounds = True

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        result = await self.sandbox.run(arguments["code"], timeout_s=self.timeout_s)
        outputs = result.stdout, result.stderr, result.value
        return Reply(result.observation(self.error_lines), str(result.status), result.duration_s, *outputs)
