"""What fails from the start ends the step at once: workers report it, the trainer's replay buffer counts and stops.

An error of a rollout fails its group, which is replaced, and one of scoring is counted. While nothing has worked yet,
that would go on for a whole generation phase.
"""
# The mix-in uses attributes of verl's replay buffers.
# mypy: disable-error-code="attr-defined,misc"

import functools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import transfer_queue

from retool_mcore.errors import FirstErrors, NeverWorked, describe, identity
from retool_mcore.rollout.failures import ROLLOUTS, expect_prompts

_TAG = "first_error"


class FirstRollouts:
    """The rollouts of one worker until one of them has worked."""

    def __init__(self):
        self.works = False

    @asynccontextmanager
    async def reported(self, prompt: str, session: int, partition: str) -> AsyncIterator[None]:
        """Run one rollout of `prompt` (verl's uid) and report its error to the trainer while none has worked."""
        try:
            yield
        except Exception as error:
            never = str(error) if isinstance(error, NeverWorked) else ""
            if never or not self.works:
                same, described = list(identity(error)), describe(error)
                found = {"prompt": prompt, "same": same, "described": described, "never": never}
                # A key of its own, which verl takes for a trajectory that belongs to no prompt.
                key = f"{_TAG}_{prompt}_{session}"
                await transfer_queue.async_kv_put(key=key, partition_id=partition, tag={_TAG: json.dumps(found)})
            raise
        self.works = True


class StopsForFirstErrors:
    """Of a replay buffer: raises NeverWorked in a look at the queue, once all rollouts have failed alike."""

    @functools.cached_property
    def _first(self) -> FirstErrors:
        return FirstErrors()

    def _sync_metadata_from_transfer_queue(self):
        super()._sync_metadata_from_transfer_queue()
        for partition_id, partition in self.partitions.items():
            found = {key: json.loads(tag[_TAG]) for key, tag in partition.items() if _TAG in tag}
            if found:
                # A restored queue must not hold what has been corrected since.
                transfer_queue.kv_clear(partition_id=partition_id, keys=list(found))
            for key, report in found.items():
                del partition[key]
                if report["never"]:
                    raise NeverWorked(report["never"])
            if partition:
                self._first.worked()
            expect_prompts(self._first, len(self.prompt_global_steps[partition_id]))
            for key, report in found.items():
                self._first.failed(ROLLOUTS, tuple(report["same"]), report["described"], key, report["prompt"])
