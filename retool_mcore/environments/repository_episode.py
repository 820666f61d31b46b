"""An episode around one repository, in three stages: prepare it, act in it, score what was left."""

import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from retool_mcore.environments.repository import RepositoryEnvironment
from retool_mcore.environments.stages import Stages
from retool_mcore.environments.tools import ENVIRONMENT
from retool_mcore.errors import UserError, describe

log = logging.getLogger(__name__)
T = TypeVar("T")


class Scored(NamedTuple, Generic[T]):
    """`result`: of the acting. verdict: 1.0 iff the tests pass, NaN where scoring raised `error` ("" if it did not);
    stages: Passage.spans; sandbox_failed: whether the sandbox itself did, in any stage."""

    result: T
    verdict: float
    error: str
    stages: list[dict]
    sandbox_failed: bool


async def in_repository(
    act: Callable[[], Awaitable[T]], row: Mapping, environment: RepositoryEnvironment, stages: Stages
) -> Scored[T]:
    """Have `act` act in the repository of the data set's `row` (its extra_info), whose tools find `environment`.

    Raises UserError for a row that holds no repository task.
    """
    if not row.get("repository"):
        raise UserError("a row of the data has no extra_info.repository: prepare it with data=repo_bugs.")
    async with stages.passage() as passage:
        try:
            await passage.enter("prepare")
            await environment.reset(row)
            await environment.prepare()
            await passage.enter("act")
            ENVIRONMENT.set(environment)
            result = await act()
            await passage.enter("score")
            verdict, error = math.nan, ""
            try:
                verdict = await environment.score()
            except UserError:
                raise
            except Exception as raised:
                # What the policy left broke the judge: were it raised, the group would be replaced.
                log.exception("scoring raised")
                error = describe(raised)
        finally:
            await environment.close()
    return Scored(result, verdict, error, passage.spans, environment.sandbox_failed)
