"""Groups in flight on Ray actors (rollout/worker.py). One that dies is replaced, and asked again for what it had."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from retool_mcore.errors import FirstErrors, UserError
from retool_mcore.rollout.failures import ROLLOUTS, GroupFailed, cause_of, expect_prompts
from retool_mcore.rollout.samples import Group

DEATHS = 3  # of workers in a run; one more is no accident


@dataclass
class Asked:
    group: Group
    worker: Any
    options: dict


class Rollouts:
    """workers: connected to the rollout engines; start: makes another one, for one that died."""

    def __init__(self, workers: list, start: Callable[[], Any]):
        self.start = start
        self.busy = dict.fromkeys(workers, 0)  # groups of each: the idlest gets the next
        self.flight: dict[Any, Asked] = {}
        self.deaths = 0
        self.first = FirstErrors()

    @property
    def flying(self) -> list[Group]:
        return [asked.group for asked in self.flight.values()]

    def ask(self, group: Group, **options) -> None:
        """Start the group's episodes. options: as `RolloutWorker.group` takes them."""
        worker = min(self.busy, key=self.busy.__getitem__)
        ref = worker.group.remote(group.uid, group.row, group.step, **options)
        self.flight[ref] = Asked(group, worker, options)
        self.busy[worker] += 1

    def ended(self, wait_s: float | None) -> list[Group]:
        """The groups that have ended since the last call. Waits for one, up to `wait_s` seconds (None: without end).

        A group whose episodes raised has `error`. Raises a worker's UserError, NeverWorked where all rollouts so far
        failed alike, and RuntimeError where a rollout engine is dead or too many workers died.
        """
        refs = list(self.flight)
        if not refs:
            return []
        done, rest = ray.wait(refs, num_returns=1, timeout=wait_s)
        done += ray.wait(rest, num_returns=len(rest), timeout=0)[0] if rest else []
        closed = [self._close(ref) for ref in done]
        groups = [group for group in closed if group is not None]
        expect_prompts(self.first, len(refs))
        self._count(groups)
        return groups

    def _count(self, groups: list[Group]) -> None:
        """Count what has failed while no rollout has worked."""
        failed = [(group.uid, group.error) for group in groups if group.error is not None]
        if len(failed) < len(groups) or any(len(error.failures) < error.rollouts for _, error in failed):
            self.first.worked()
        for uid, error in failed:
            for number, cause in error.failures:
                self.first.failed(ROLLOUTS, cause[:2], str(cause), f"{uid}/{number}", uid)

    def _close(self, ref) -> Group | None:
        asked = self.flight.get(ref)
        if asked is None:  # asked for again already
            return None
        try:
            asked.group.samples = ray.get(ref)
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from error
            if isinstance(cause, RayActorError):
                raise RuntimeError(f"A rollout engine or a judge died: {cause}") from error
            one = cause if isinstance(cause, GroupFailed) else GroupFailed([(0, cause_of(error))], rollouts=1)
            asked.group.error = one
        except RayActorError as error:
            self._replace(asked.worker, error)
            return None
        del self.flight[ref]
        self.busy[asked.worker] -= 1
        return asked.group

    def _replace(self, worker, error: RayActorError) -> None:
        """Ask a new worker for all that the dead one had. The seeds are the same, so are the episodes."""
        self.deaths += 1
        if self.deaths > DEATHS:
            raise RuntimeError(f"{self.deaths} rollout workers died, the last one so: {error}") from error
        del self.busy[worker]
        self.busy[self.start()] = 0
        lost = [ref for ref, asked in self.flight.items() if asked.worker is worker]
        print(f"a rollout worker died, its {len(lost)} groups are asked for again: {error}", flush=True)
        for asked in [self.flight.pop(ref) for ref in lost]:
            self.ask(asked.group, **asked.options)
