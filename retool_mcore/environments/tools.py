"""The tools by which a policy acts on a trajectory's repository, for the configuration's section `toolbox`."""

from contextvars import ContextVar
from dataclasses import dataclass

from retool_mcore.environments.repository import SCHEMAS, RepositoryEnvironment
from retool_mcore.tools.base import Episode, Reply, Tool

# The environment of the trajectory that the running task belongs to; tasks that it starts inherit it.
ENVIRONMENT: ContextVar[RepositoryEnvironment] = ContextVar("environment")


@dataclass(eq=False)
class RepositoryTool(Tool):
    """One tool of the environment, answered by the trajectory's own."""

    schema: dict
    parallel = False  # edits of one turn happen in the order in which they were written
    keeps_time = True

    async def call(self, arguments: dict, episode: Episode) -> Reply:
        return await ENVIRONMENT.get().step(self.name, arguments)


class RepositoryTools:
    """The tools of a repository environment, for `tools.use`."""

    def __init__(self):
        self.tools = [RepositoryTool(schema) for schema in SCHEMAS]
