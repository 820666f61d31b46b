"""The data that the causes read: a stage's metrics by step, its trajectories, its configuration and how it ended."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from retool_mcore.files import read_json_lines
from retool_mcore.metrics.records import read_columns, read_step, step_files
from retool_mcore.runner.stage_log import last_error
from retool_mcore.state.progress import read_steps

MOST_FILES = 24  # step files whose small columns are read: the first and the last ones, the others evenly spaced
MOST_ROWS = 400  # whole trajectories read of the start of a run, and of its end
FEW_FILES = 3
TREND = 6  # steps that a cause needs which is about a change
PART = 4  # early: the first of so many parts of the steps; late: the last
COLUMNS = ["uid", "index", "data_source", "score", "acc", "pred", "ground_truth", "finish", "tokens", "num_calls"]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Row:
    """The small columns of one trajectory; `step` and `row` are its place in `retool view`."""

    step: int
    row: int
    uid: str
    index: int
    data_source: str
    score: float
    acc: float
    pred: str
    truth: str
    finish: str
    tokens: int
    calls: int

    @property
    def place(self) -> tuple[int, int]:
        return self.step, self.row


@dataclass
class Prepared:
    """One stage ("sft" or "rl") of a run.

    steps: {step: {metric: value}}, ascending. rows: of the read steps, in order; early and late: whole records of the
    first and of the last steps, each with "row". outcome: of the last attempt that ended ("complete", "failed", ...),
    "" while none has; error: the line of the log that says why it failed.
    """

    run: Path
    stage: str
    config: Mapping[str, Any] = field(default_factory=dict)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    early: list[dict] = field(default_factory=list)
    late: list[dict] = field(default_factory=list)
    outcome: str = ""
    error: str = ""

    def key(self, name: str, default: Any = None) -> Any:
        """The configuration's value of the dotted `name`."""
        value: Any = self.config
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def curve(self, name: str) -> dict[int, float]:
        """{step: value} of a metric, NaN left out."""
        return {step: data[name] for step, data in self.steps.items() if data.get(name, float("nan")) == data.get(name)}

    def ends(self, name: str) -> tuple[float, float] | None:
        """The metric's means over the first and the last part of the steps; None with fewer than two values."""
        values = list(self.curve(name).values())
        if len(values) < 2:
            return None
        each = max(1, len(values) // PART)
        return statistics.fmean(values[:each]), statistics.fmean(values[-each:])

    def late_mean(self, name: str) -> float | None:
        """The metric's mean over the last part of the steps; None where it was not recorded."""
        values = list(self.curve(name).values())
        return statistics.fmean(values[-max(1, len(values) // PART) :]) if values else None

    @cached_property
    def late_rows(self) -> list[Row]:
        """The rows of the last part of the read steps."""
        return self._part(last=True)

    @cached_property
    def early_rows(self) -> list[Row]:
        """The rows of the first part of the read steps."""
        return self._part(last=False)

    def _part(self, last: bool) -> list[Row]:
        steps = sorted({row.step for row in self.rows})
        each = max(1, len(steps) // PART)
        kept = set(steps[-each:] if last else steps[:each])
        return [row for row in self.rows if row.step in kept]

    @property
    def span(self) -> str:
        """ "steps 1 to 30" of what was recorded."""
        return span(self.steps or {row.step: None for row in self.rows})

    def rise(self) -> float:
        """How much the training accuracy rose from the first part of the steps to the last, 0 where it is not known."""
        ends = self.ends("reward/accuracy")
        return ends[1] - ends[0] if ends else 0.0

    @cached_property
    def accuracy(self) -> float:
        """The training accuracy of the last part of the steps: by the metric, else of the late rows, else 0."""
        value = self.late_mean("reward/accuracy")
        if value is None:
            value = mean([row.acc for row in self.late_rows])
        return value


def prepare(run: Path, stage: str) -> Prepared | None:
    """Read a stage; None when it has neither a finished step nor a failed attempt."""
    folder = run / stage
    attempts = [own for own in read_json_lines(folder / "attempts.jsonl") if isinstance(own.get("attempt"), int)]
    outcome = str(max(attempts, key=lambda own: own["attempt"]).get("outcome", "")) if attempts else ""
    prepared = Prepared(run, stage, config=_config(folder / "config.yaml"), steps=read_steps(folder), outcome=outcome)
    if outcome == "failed" and (folder / "log.txt").is_file():
        prepared.error = last_error(folder / "log.txt")[0]
    if stage == "rl":
        files = step_files(folder / "trajectories")
        chosen = _chosen(list(files))
        prepared.rows = [row for step in chosen for row in _rows(step, files[step])]
        prepared.early = _records(files, chosen[:FEW_FILES])
        prepared.late = _records(files, chosen[-FEW_FILES:])
    return prepared if prepared.steps or prepared.rows or prepared.error else None


def _config(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.load(path.read_text(), Loader=_LOADER)
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def _chosen(steps: Sequence[int]) -> list[int]:
    """At most MOST_FILES of the steps, the first and the last ones among them."""
    if len(steps) <= MOST_FILES:
        return list(steps)
    edge, inner = MOST_FILES // 4, MOST_FILES // 2
    middle = steps[edge:-edge]
    return [*steps[:edge], *(middle[place * len(middle) // inner] for place in range(inner)), *steps[-edge:]]


def _rows(step: int, path: Path) -> Iterator[Row]:
    for number, own in enumerate(read_columns(path, COLUMNS).to_pylist()):
        own = {name: _EMPTY[name] if value is None else value for name, value in own.items()}
        truth, calls = own.pop("ground_truth"), own.pop("num_calls")
        yield Row(step=step, row=number, truth=truth, calls=calls, **own)


_EMPTY = {name: "" for name in ("uid", "data_source", "pred", "ground_truth", "finish")} | {
    name: 0 for name in ("index", "score", "acc", "tokens", "num_calls")
}


def _records(files: Mapping[int, Path], steps: Sequence[int]) -> list[dict]:
    """Whole records of these steps, an equal number of each, with "step" and "row"."""
    collected: list[dict] = []
    for step in steps:
        each = max(1, MOST_ROWS // max(1, len(steps)))
        total = read_columns(files[step], ["acc"]).num_rows
        rows = [place * total // each for place in range(each)] if total > each else list(range(total))
        records = read_step(files[step], rows=rows)
        collected += [record | {"step": step, "row": row} for row, record in zip(rows, records, strict=True)]
    return collected


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of nothing."""
    return statistics.fmean(values) if values else 0.0


def span(steps: Mapping[int, Any] | Sequence[int]) -> str:
    """ "step 3" or "steps 1 to 30"."""
    ordered = sorted(set(steps))
    if not ordered:
        return "no step"
    return f"step {ordered[0]}" if len(ordered) == 1 else f"steps {ordered[0]} to {ordered[-1]}"


def two(records: Sequence[Any], wanted: Callable[[Any], bool]) -> tuple[tuple[int, int], ...]:
    """The places of the last record that is `wanted`, and of the last one of another problem before it."""
    places: list[tuple[int, int]] = []
    problems: list[Any] = []
    for record in reversed(records):
        if not wanted(record):
            continue
        is_row = isinstance(record, Row)
        problem = record.index if is_row else record.get("index")
        if problem not in problems:
            places.append(record.place if is_row else (record["step"], record["row"]))
            problems.append(problem)
        if len(places) == 2:
            break
    return tuple(places)
