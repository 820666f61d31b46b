"""Which faults a rehearsal (benchmarks/cluster/rehearsal.py) has, and how the run under them is judged."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PHASES = ("generation", "log-probabilities", "update", "save", "push")
LIMIT = "time limit"
# By the names of slurm_faults.PARTS; what goes on in the same attempt is no start.
VICTIMS = (
    "trainer",
    "actor rank",
    "vLLM engine",
    "agent-loop worker",
    "raylet",
    "Ray head (gcs_server)",
    "slurmstepd of the batch script",
    "job process",
    "sandbox server",
)
IN_PLACE = ("sandbox server", "agent-loop worker")


@dataclass(frozen=True)
class Planned:
    what: str  # LIMIT or a victim
    phase: str
    share: float  # of the phase, after which it comes


def plan(faults: int, seed: int) -> list[Planned]:
    """Six faults a step, in the order of its phases and two in the generation: a time limit and a kill in turn, the
    other way round in the next step. The victims come from a shuffled deck, so that each has its turn."""
    rng = random.Random(seed)
    order = [PHASES[0], *PHASES]
    deck: list[str] = []
    found: list[Planned] = []
    for number in range(faults):
        block, place = divmod(number, len(order))
        what = LIMIT
        if (block + place) % 2:
            if not deck:
                last = next((one.what for one in reversed(found) if one.what != LIMIT), None)
                while not deck or deck[-1] == last:
                    deck = rng.sample(VICTIMS, len(VICTIMS))
            what = deck.pop()
        found.append(Planned(what, order[place], rng.random()))
    return found


def generated_twice(kept: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Trajectories that more than one start has finished: `kept` has, by step, the keys of each start's file."""
    found = []
    for step, files in sorted(kept.items()):
        counted = Counter(key for keys in files for key in keys)
        found += [f"step {step}: {key}" for key, count in sorted(counted.items()) if count > 1]
    return found


def largest_difference(found: Mapping[int, Mapping], wanted: Mapping[int, Mapping], names: Sequence[str]) -> float:
    """Of two runs' metrics by step, relative (absolute below 1e-2); infinite where one of them is not there."""
    worst = 0.0
    for step, values in wanted.items():
        for name in names:
            if (value := found.get(step, {}).get(name)) is None:
                return float("inf")
            worst = max(worst, abs(value - values[name]) / max(abs(values[name]), 1e-2))
    return worst


def in_metrics(attempts: Sequence[Mapping[int, Mapping]], steps: int) -> tuple[list[int], list[int]]:
    """(steps of 1..steps that no attempt has told, steps that more than one has)."""
    counted = Counter(step for attempt in attempts for step in attempt)
    return [step for step in range(1, steps + 1) if not counted[step]], sorted(s for s, n in counted.items() if n > 1)
