"""Which groups of trajectories are asked for, and which of them a step takes. Rollouts know no training step; here they
meet: one rule makes the synchronous pipeline and those whose rollouts run ahead."""

from collections.abc import Callable
from typing import Protocol

from retool_mcore.data.prompt_stream import Asked, Prompts
from retool_mcore.rollout.samples import Group
from retool_mcore.rollout.seeds import DRAW, Draws
from retool_mcore.state import heartbeat


class Flight(Protocol):
    """Groups that were requested and have not ended (rollout/rollouts.py)."""

    def ask(self, group: Group, **options) -> None: ...

    def ended(self, wait_s: float | None) -> list[Group]: ...

    @property
    def flying(self) -> list[Group]: ...


class Judge(Protocol):
    """Which groups teach something (recipes/filters.py)."""

    def reason(self, group: Group) -> str: ...

    def check(self, step: int) -> None: ...

    def metrics(self, step: int) -> dict[str, float]: ...


class Groups:
    """Whole groups for every step.

    A group that teaches nothing, failed or was spoilt is replaced by one of a new prompt; what is asked for and not
    taken is always `1 + staleness` batches. A group is taken at most `staleness` steps after it was asked for: with 0 a
    step takes exactly what it asked for, once nothing is in flight, so no short answer is preferred.

    Args:
        options: gives what a rollout of the groups of a step is asked with (`Rollouts.ask`).
        seen: called with each group that has ended, before it is judged.
        batch: groups a step.
    """

    def __init__(
        self, rollouts: Flight, prompts: Prompts, judge: Judge, options: Callable[[int], dict],
        *, batch: int, staleness: int, seen: Callable[[Group], None] | None = None,
    ):  # fmt: skip
        self.rollouts, self.prompts, self.judge, self.options = rollouts, prompts, judge, options
        self.batch, self.staleness, self.seen = batch, staleness, seen
        self.ready: list[Group] = []
        self.decided: list[Group] = []  # since the last take
        self.draws = Draws()

    @property
    def pending(self) -> list[Group]:
        """The groups that are asked for and not taken."""
        return self.rollouts.flying + self.ready

    def ask(self, step: int, count: int | None = None) -> None:
        """Ask for groups of `count` new prompts; by default for as many as make 1 + staleness batches."""
        missing = (1 + self.staleness) * self.batch - len(self.pending) if count is None else count
        for row in self.prompts.take(missing):
            drawn = self.draws.number(step, str(row["data_source"]), int(row["index"]))
            # Counted within the step: an attempt at the same step gives the same prompts the same names.
            self._send(Group(f"{step:06d}-{drawn.order:06d}", row | {DRAW: drawn.draw}, step))

    @property
    def to_ask_again(self) -> list[Asked]:
        """Return the pending requests, for a checkpoint."""
        return [(group.uid, group.step, group.row["number"], group.row[DRAW]) for group in self.pending]

    def ask_again(self, asked: list[Asked]) -> None:
        """Ask for what a checkpoint says was pending, under the old names: what is finished of it is found on the
        disk."""
        for uid, step, number, draw in asked:
            self._send(Group(uid, self.prompts.row(number) | {DRAW: draw}, step))

    def take(self, step: int, want: int) -> tuple[list[Group], dict[str, float]]:
        """The oldest `want` groups, in the order in which they were asked for, and the metrics of what was dropped."""
        self._receive(step, wait_s=0)
        while len(self.ready) < want or any(group.step <= step - self.staleness for group in self.rollouts.flying):
            if not self.rollouts.flying:
                raise RuntimeError(
                    f"step {step} waits for {want} groups, {len(self.ready)} are ready, none is asked for"
                )
            self._receive(step, wait_s=None)
        self.ready.sort(key=lambda group: group.uid)
        taken, self.ready = self.ready[:want], self.ready[want:]
        # In an order that no clock decides, so that an attempt at the same step draws the same prompts.
        for group in sorted(self.decided, key=lambda group: group.uid):
            self.prompts.measure(group.row, sum(float(s.outcome["acc"]) for s in group.samples) / len(group.samples))
        self.decided = []
        return taken, self.judge.metrics(step)

    def _send(self, group: Group) -> None:
        self.rollouts.ask(group, **self.options(group.step))

    def _receive(self, step: int, wait_s: float | None) -> None:
        for group in self.rollouts.ended(wait_s):
            if self.seen:
                self.seen(group)
            reason = self.judge.reason(group)
            if reason in ("", "all_equal", "accuracy"):
                self.decided.append(group)
            if not reason:
                self.ready.append(group)
                continue
            self.judge.check(step)
            self.ask(step, 1)
        heartbeat.again(heartbeat.TRAINER, len(self.ready), len(self.pending))
