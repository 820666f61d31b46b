"""One cause that was found in a run, and the order in which several are reported."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

MOST = 10  # findings in a report
FOLLOWS = 0.5  # of its severity has a finding that another one accounts for


@dataclass(frozen=True)
class Finding:
    """A cause with its evidence.

    cause: a short name; severity: in (0, 1], how much it keeps the run from learning. what: a clause with numbers and
    steps; key: the configuration's key to change, how: in which way. looks: (step, row) of up to two trajectories.
    explains: causes that follow from this one.
    """

    cause: str
    severity: float
    what: str
    key: str
    how: str
    looks: tuple[tuple[int, int], ...] = ()
    explains: tuple[str, ...] = ()
    stage: str = "rl"

    def sentence(self) -> str:
        """The finding as one sentence, with the trajectories as `retool view` names them."""
        look = " and ".join(f"#/t/{step}/{row}" for step, row in self.looks[:2])
        see = f"; see {look}" if look else ""
        return f"{self.stage}, {self.cause}: {self.what}{see}: change {self.key} ({self.how})."


def ranked(findings: Iterable[Finding], most: int = MOST) -> list[Finding]:
    """The `most` severest findings; one that another found cause of its stage explains counts half."""
    listed = list(findings)
    explained = {(one.stage, cause) for one in listed for cause in one.explains}
    weighed = [
        replace(one, severity=one.severity * FOLLOWS) if (one.stage, one.cause) in explained else one for one in listed
    ]
    return sorted(weighed, key=lambda one: (-one.severity, one.cause))[:most]
