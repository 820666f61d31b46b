"""Where a trajectory of a step comes from, and the seed of each of its requests, so that a resumed run samples what an
undisturbed one would have."""

import hashlib
from collections import Counter
from typing import NamedTuple

DRAW = "draw"  # of a prompt's row: its `Drawn.draw`


class Drawn(NamedTuple):
    """A prompt's place in its step: how many prompts the data loader gave before it, and how many of those were the
    same problem."""

    order: int
    draw: int


class Draws:
    """Numbers the prompts of a step in the data loader's order, which every attempt at the step repeats.

    A step draws a problem several times where its rows carry a weight, and at the border of two epochs.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.seen: Counter[tuple[str, int]] = Counter()

    def number(self, step: int, source: str, index: int) -> Drawn:
        """Number the next prompt of `step`: problem `index` of `source`. Another step begins anew."""
        if step != self.step:
            self.step, self.seen = step, Counter()
        drawn = Drawn(self.seen.total(), self.seen[source, index])
        self.seen[source, index] += 1
        return drawn


def request_seed(
    seed: int, step: int, index: int, sample: int, turn: int, done: int = 0, *, draw: int = 0, branch: str = ""
) -> int:
    """A 31-bit seed for one turn of one trajectory: the run's seed, training step, problem, sample in group, turn.

    done: tokens of the turn that exist already, where the engine was interrupted in it. draw: how often the step drew
    the problem before this group (`Drawn.draw`). branch: tells turns apart that have the same place, "" for the first.
    """
    place = f"{seed}/{step}/{index}/{sample}/{turn}" + (f"/{done}" if done else "") + (f"/draw{draw}" if draw else "")
    place += f"/branch{branch}" if branch else ""
    return int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big") >> 1
