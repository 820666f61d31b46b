"""Trajectories that ended because the sandbox itself was in trouble: counted, and too many of them stop the run.

What such a trajectory was worth is not known, so nothing is learnt from it: its group is generated again.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from retool_mcore.errors import UserError
from retool_mcore.rollout.trajectory import Trajectory
from retool_mcore.sandbox.base import Sandbox, Status
from retool_mcore.sandbox.create import probe


class SandboxErrors:
    """Sandbox errors of one step. limit: share of its trajectories that may be lost. A step has at least `prompts`
    times n trajectories: a few early errors do not make a share yet."""

    def __init__(self, limit: float, n: int):
        self.limit, self.n = limit, n
        self.clear()

    def clear(self) -> None:
        self.lost, self.seen, self.last = 0, 0, ""

    def add(self, finishes: Sequence[str], calls: Callable[[int], Sequence[Mapping]]) -> bool:
        """Count a group's trajectories by why they ended; whether any was lost. calls: the calls of one, by its row."""
        lost = [row for row, finish in enumerate(finishes) if finish == Status.SANDBOX]
        self.seen, self.lost = self.seen + len(finishes), self.lost + len(lost)
        if lost:
            self.last = error_of(calls(lost[-1]))
        return bool(lost)

    def check(self, step: int, prompts: int) -> None:
        """Raises UserError when more were lost than the limit allows."""
        if self.lost > self.limit * max(self.seen, prompts * self.n):
            raise UserError(
                f"step {step}: the sandbox itself failed in {self.lost} of {self.seen} trajectories, more than the "
                f"share of rollout.sandbox_errors={self.limit:g} that a step may lose (the last error: {self.last}): "
                "start the sandbox again or correct sandbox.*, see that `retool doctor` finds it, and give the same "
                "command again, which goes on after the last checkpoint."
            )


def error_of(calls: Sequence[Mapping]) -> str:
    """The sandbox's own words about the last call that it failed; `calls` as in a trajectory's record."""
    texts = [call["stderr"] for call in calls if call["status"] == Status.SANDBOX]
    return " ".join(texts[-1].split())[-300:] if texts else ""


async def with_sandbox(episode: Callable[[], Awaitable[Trajectory]], sandbox: Sandbox) -> Trajectory:
    """The trajectory of an evaluation's `episode`, run a second time if the sandbox itself fails in it.

    If it fails again, the trajectory is returned where the sandbox runs a program of ours: it is this one's doing.
    Raises UserError where it does not.
    """
    for _ in range(2):
        trajectory = await episode()
        if trajectory.finish != Status.SANDBOX:
            return trajectory
    try:
        await probe(sandbox)
    except UserError as error:
        raise UserError(f"{error} Then start the same evaluation again: it goes on with what is missing.") from error
    return trajectory
