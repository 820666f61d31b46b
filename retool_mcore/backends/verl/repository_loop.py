"""The adapter between a repository environment and verl's agent loop: prepare, act, score, for each trajectory."""

import functools
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from retool_mcore.backends.verl.agent_loop import RetoolAgentLoop, _shared_sandbox
from retool_mcore.environments.repository import RepositoryEnvironment
from retool_mcore.environments.stages import Stages
from retool_mcore.environments.tools import ENVIRONMENT
from retool_mcore.errors import UserError, describe
from retool_mcore.sandbox.base import Status

log = logging.getLogger(__name__)


@functools.cache
def _shared_stages(limits_json: str) -> Stages:
    return Stages(json.loads(limits_json))


class RepositoryAgentLoop(RetoolAgentLoop):
    """As RetoolAgentLoop, around one repository a trajectory; `stages` are the limits of `Stages`.

    `extra_fields` also has `verdict` (1.0 iff the tests pass, not a number if scoring raised), which the reward reads,
    and `stages` (Passage.spans as JSON text).
    """

    def __init__(self, *args, stages: Mapping[str, int], **kwargs):
        super().__init__(*args, **kwargs)
        self.stages_json = json.dumps(dict(stages), sort_keys=True)

    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs):
        """See RetoolAgentLoop.run. Raises UserError for a row that holds no repository task."""
        row = kwargs.get("extra_info") or {}
        if not row.get("repository"):
            raise UserError("a row of the data has no extra_info.repository: prepare it with data=repo_bugs.")
        environment = RepositoryEnvironment(_shared_sandbox(self.sandbox_json), self.timeout_s, self.limits.error_lines)
        async with _shared_stages(self.stages_json).passage() as passage:
            try:
                await passage.enter("prepare")
                await environment.reset(row)
                await environment.prepare()
                await passage.enter("act")
                ENVIRONMENT.set(environment)
                output = await super().run(sampling_params, priority, **kwargs)
                await passage.enter("score")
                error = ""
                try:
                    verdict = await environment.score()
                except UserError:
                    raise
                except Exception as raised:
                    # What the policy left broke the judge: were it raised, the group would be replaced.
                    log.exception("scoring raised")
                    verdict, error = math.nan, describe(raised)
            finally:
                await environment.close()
        output.extra_fields |= {"verdict": verdict, "scoring_error": error, "stages": json.dumps(passage.spans)}
        if environment.sandbox_failed:
            output.extra_fields["finish"] = str(Status.SANDBOX)
        return output
