"""Which problems RL draws: by their pass rates, those that were measured beforehand and those of the run itself.

A group that is all right, or all wrong, has no advantage: its problem is taken in proportion to 4 p (1 - p) of the pass
rate p, and one that is solved time after time not at all. Where problems are generated and each is met once, the pass
rate of their data source, a level of the task, stands for theirs.

The data loader offers problems as ever, each once an epoch; some are passed over. What decides is a hash of the seed
and of how many were offered before, so a run that goes on from a checkpoint draws what it would have drawn.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from retool_mcore.data.schema import rows_of
from retool_mcore.errors import UserError
from retool_mcore.files import write_atomically

FLOOR = 0.1  # least weight: what was too hard, or solved, is tried again
SHARE = {"problem": 0.5, "source": 0.125}  # of a pass rate, which its next group makes; a source has many groups a step
STATE = "curriculum.json"  # in a checkpoint


class Curriculum:
    """by, weights, retire: as data.curriculum's. problems: those that may be drawn, none: all; rates: the pass rates of
    problems, or of data sources where `by` is "source"."""

    def __init__(
        self, weights: bool = False, retire: int | None = None, seed: int = 0,
        problems: Collection[str] = (), rates: Mapping[str, float] | None = None, by: str = "problem",
    ):  # fmt: skip
        self.by, self.units = by, frozenset(unit_of(problem, by) for problem in problems)
        self.weights, self.retire, self.seed, self.problems = weights, retire, seed, frozenset(problems)
        self.rates = dict(rates or {})  # of its groups; the last counts SHARE
        self.solved: dict[str, int] = {}  # groups in a row that were all right
        self.retired: set[str] = set()
        self.offered = self.passed_over = 0

    def takes(self, problem: str) -> bool:
        """Whether to draw the problem that the data loader offers."""
        self.offered += 1
        rate = self.rates.get(unit := unit_of(problem, self.by), 0.5)
        weight = max(FLOOR, 4 * rate * (1 - rate)) if self.weights else 1.0
        fits = unit not in self.retired and (not self.problems or problem in self.problems)
        drawn = int.from_bytes(hashlib.sha256(f"{self.seed}\n{self.offered}".encode()).digest()[:8], "big") / 2**64
        taken = fits and drawn < weight
        self.passed_over += not taken
        return taken

    def measure(self, problem: str, rate: float) -> None:
        """A group of the problem has ended, and this share of it is right."""
        unit = unit_of(problem, self.by)
        before = self.rates.get(unit, rate)
        self.rates[unit] = before + (rate - before) * SHARE[self.by]
        self.solved[unit] = self.solved.get(unit, 0) + 1 if rate == 1 else 0
        if self.retire:
            (self.retired.add if self.solved[unit] >= self.retire else self.retired.discard)(unit)
        if self.units and self.retired >= self.units:
            what = {"problem": "problems", "source": "data sources"}[self.by]
            print(f"curriculum: all {len(self.units)} {what} are retired, solved; RL goes on with all of them")
            self.solved, self.retired = {}, set()

    def save(self, checkpoint: Path) -> None:
        state = {"rates": self.rates, "solved": self.solved, "offered": self.offered}
        write_atomically(checkpoint / STATE, json.dumps(state))

    def load(self, checkpoint: Path) -> None:
        """Go on as at this checkpoint; where it says nothing, with what is known beforehand."""
        if (path := checkpoint / STATE).is_file():
            state = json.loads(path.read_text())
            self.rates, self.solved, self.offered = state["rates"], state["solved"], state["offered"]
            self.retired = {name for name, times in self.solved.items() if self.retire and times >= self.retire}


def problem_name(data_source: str, index: int) -> str:
    return f"{data_source}/{index}"


def unit_of(problem: str, by: str) -> str:
    """Return what shares a pass rate with the problem of this name: itself, or its data source."""
    return problem if by == "problem" else problem.rpartition("/")[0]


def load_curriculum(section: Mapping, files: str | Iterable[str], seed: int) -> Curriculum:
    """The curriculum of the section data.curriculum over the RL parquets `files`. Raises UserError."""
    weights, retire, path, keep = map(section.get, ("weights", "retire", "pass_rates", "keep"))
    if not (weights or retire or path):
        return Curriculum(seed=seed)
    rows = rows_of(files)
    names = [problem_name(row["data_source"], row["extra_info"]["index"]) for row in rows]
    truths = [row["reward_model"]["ground_truth"] for row in rows]
    rates = _measured(Path(path), names, truths) if path else {}
    low, high = keep or (0, 1)
    kept = {name for name in names if low <= rates.get(name, low) <= high}
    if not kept:
        raise UserError(f"data.curriculum.keep=[{low},{high}] leaves none of {len(set(names))} problems: widen it.")
    by = section.get("by") or "problem"
    shared: dict[str, list[float]] = defaultdict(list)
    for name, rate in rates.items():
        shared[unit_of(name, by)].append(rate)
    return Curriculum(weights, retire, seed, kept, {unit: sum(own) / len(own) for unit, own in shared.items()}, by)


def _measured(path: Path, names: list[str], truths: list[str]) -> dict[str, float]:
    """Pass rates by problem of a trajectories.jsonl that `retool eval` wrote of these problems, in this order."""
    verdicts = defaultdict(list)
    try:
        with path.open() as lines:
            for line in lines:
                record = json.loads(line)
                if truths[record["index"]] != record["ground_truth"]:
                    raise ValueError(f"number {record['index']} has another answer")
                verdicts[names[record["index"]]].append(record["acc"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        message = f"expected the trajectories.jsonl of `retool eval` on data.train_files ({error})"
        raise UserError(f"data.curriculum.pass_rates={path}: {message}.") from error
    return {name: sum(own) / len(own) for name, own in verdicts.items()}
