"""What fails from the start ends the step at once: the workers find it, the trainer's replay buffer stops for it.

An error of a rollout fails its group, which is replaced, and one of scoring is counted. Where nothing has worked yet
that would go on for a whole generation phase.
"""
# The mix-in uses attributes of verl's replay buffers.
# mypy: disable-error-code="attr-defined,misc"

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import transfer_queue

from retool_mcore.errors import FirstErrors, NeverWorked

_TAG = "never_worked"


class ScoringError(Exception):
    """A reward, or what else scores a trajectory, raised before any trajectory was scored; `error`: `describe`'s."""

    def __init__(self, error: str):
        message, _, place = error.rpartition(" (")
        super().__init__(message or error)
        file, _, rest = place.removesuffix(")").partition(",")
        self.traceback_str = f'File "{file}",{rest}' if message else ""


@asynccontextmanager
async def stopped_by_first_errors(first: FirstErrors, prompt: str, partition: str) -> AsyncIterator[None]:
    """Run one rollout of `prompt` (verl's uid) and tell the trainer when all rollouts so far failed alike."""
    try:
        yield
    except Exception as error:
        try:
            first.failed("every rollout so far", error, prompt)
        except NeverWorked as never:
            # A key of its own, which verl takes for a trajectory that belongs to no prompt.
            await transfer_queue.async_kv_put(key=f"{_TAG}_{prompt}", partition_id=partition, tag={_TAG: str(never)})
            raise
        raise
    first.worked()


class StopsForFirstErrors:
    """Of a replay buffer: raises UserError, in its next look at the queue, for what a worker found to fail always."""

    def _sync_metadata_from_transfer_queue(self):
        super()._sync_metadata_from_transfer_queue()
        for partition in self.partitions.values():
            for tag in partition.values():
                if _TAG in tag:
                    raise NeverWorked(tag[_TAG])
