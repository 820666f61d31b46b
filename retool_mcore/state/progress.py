"""One line of progress for a running stage, read from the metrics file that verl's `file` logger writes.

verl writes one JSON line a step, {"step": N, "data": {name: value}}, and starts the file anew when it opens it, so
every attempt has a file of its own: RUN/<stage>/metrics/attempt_NNN.jsonl.
"""

import json
import re
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TextIO

import yaml
from tqdm import tqdm

# What the line of a running stage shows, in this order: the label, and the end of the metric's name.
SHOWN = {
    "loss": "train/loss",
    "val": "val/loss",
    "reward": "critic/score/mean",
    "accuracy": "reward/accuracy",
    "val acc": "val/accuracy",
    "code": "code_ratio",
    "length": "response_length/mean",
    "entropy": "actor/entropy",
    "tokens/s": "perf/tokens_per_second",
    "gen s": "timing_s/gen",
    "tool s": "timing_s/tools",
    "update s": "timing_s/update_actor",
}
ASK_S = 2.0  # between two looks at what the stage does
_ATTEMPT = re.compile(r"attempt_(\d+)\.jsonl")


def attempt_files(folder: Path) -> dict[int, Path]:
    """The metrics files of a stage folder by attempt number, in order."""
    matches = ((_ATTEMPT.fullmatch(path.name), path) for path in (folder / "metrics").glob("attempt_*.jsonl"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def read_steps(folder: Path) -> dict[int, dict[str, float]]:
    """Metrics by step over all attempts; a step that was run again after a resume counts with its last values."""
    return Steps(folder).read()


class Steps:
    """`read_steps` again and again: of the files only what was added is read, and only the metrics `names` are kept.

    `attempts`: attempt -> its own steps, as far as read.
    """

    def __init__(self, folder: Path, names: Collection[str] | None = None) -> None:
        self.folder, self.names = folder, names
        self.attempts: dict[int, dict[int, dict[str, float]]] = {}
        self.positions: dict[int, int] = {}

    def read(self) -> dict[int, dict[str, float]]:
        """{step: {metric: value}}, ascending."""
        steps: dict[int, dict[str, float]] = {}
        for attempt, path in attempt_files(self.folder).items():
            fresh, position = self.attempts.setdefault(attempt, {}), self.positions.get(attempt, 0)
            added, self.positions[attempt] = parse_added(path, position)
            for step, data in added:
                if data:
                    kept = data if self.names is None else {name: data[name] for name in self.names if name in data}
                    fresh.setdefault(step, {}).update(kept)
            if fresh:
                steps = {step: data for step, data in steps.items() if step < min(fresh)} | fresh
        return dict(sorted(steps.items()))


def total_steps(folder: Path) -> int | None:
    """Steps of the whole stage in `folder`; None where its configuration does not say."""
    try:
        total = yaml.load((folder / "config.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return int(total["verl"]["trainer"]["total_training_steps"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def parse_added(path: Path, position: int) -> tuple[list[tuple[int, dict[str, float]]], int]:
    """`parse` of the lines after `position`, and where to go on: what was half a line is to be read again."""
    with path.open("rb") as file:
        file.seek(position)
        added = file.read()
    return list(map(parse, added.splitlines())), position + added.rfind(b"\n") + 1


def parse(line: bytes) -> tuple[int, dict[str, float]]:
    """(step, numeric metrics) of one line; (0, {}) for a line that a killed stage left half written."""
    try:
        record = json.loads(line)
        return int(record["step"]), {key: value for key, value in record["data"].items() if _is_number(value)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0, {}


def metric(data: Mapping[str, float], name: str) -> float | None:
    """The value whose key is `name` or ends with /name, None when there is none."""
    return next((value for key, value in data.items() if key == name or key.endswith(f"/{name}")), None)


class Progress:
    """Follows one metrics file: a bar on a terminal, otherwise a plain line at most every `every_s` seconds.

    While no step ends, the plain line comes six times less often. `doing` says what runs now (phase_line.py).
    counts_steps: whether the stage has steps; of one that has none, as an evaluation, `doing` is all there is to show.
    """

    def __init__(
        self,
        stage: str,
        path: Path,
        total: int | None,
        *,
        out: TextIO | None = None,
        every_s: float = 10.0,
        doing: Callable[[], str] = lambda: "",
        counts_steps: bool = True,
    ) -> None:
        self.stage, self.path, self.total, self.every_s = stage, path, total, every_s
        self.counts_steps = counts_steps
        self.out = sys.stderr if out is None else out
        self.step = 0
        self.shown: dict[str, float] = {}
        self.position = 0
        self.started = self.printed = time.monotonic()
        self.printed_step = 0
        self.doing, self.looked, self.activity = doing, 0.0, ""
        shape = {} if counts_steps else {"bar_format": "{desc}: {elapsed}{postfix}"}
        self.bar = tqdm(total=total, desc=stage, unit="step", file=self.out, **shape) if self.out.isatty() else None

    def update(self) -> None:
        """Reads what is new and shows it; cheap enough to be called several times a second."""
        self._read()
        if self.bar is not None:
            self._move_bar()
            now = self._now()
            self.bar.set_postfix_str(now + (self._figures() if self.step or now else "starting"), refresh=True)
        elif time.monotonic() - self.printed >= self.every_s * self._patience():
            self._print()

    def _patience(self) -> int:
        """How many times `every_s` a plain line waits. A stage without steps has but its phase to show."""
        if self.step > self.printed_step:
            return 1
        return 6 if self.counts_steps else 2

    def close(self) -> None:
        """Shows the last state."""
        self._read()
        if self.bar is not None:
            self._move_bar()
            self.bar.close()
        elif self.step > self.printed_step:
            self._print()

    def _read(self) -> None:
        if not self.path.exists():
            return
        added, self.position = parse_added(self.path, self.position)
        for step, data in added:
            self.step = max(self.step, step)
            labelled = ((label, metric(data, name)) for label, name in SHOWN.items())
            self.shown |= {label: value for label, value in labelled if value is not None}

    def _move_bar(self) -> None:
        if self.bar.n == 0 and self.step > 1:  # resumed: the steps of earlier attempts do not count for the speed
            self.bar.initial = self.bar.n = self.step - 1
        self.bar.update(self.step - self.bar.n)

    def _now(self) -> str:
        if time.monotonic() - self.looked >= ASK_S:
            self.looked, self.activity = time.monotonic(), self.doing()
        return self.activity and f"{self.activity}, "

    def _figures(self) -> str:
        return ", ".join(f"{label} {self.shown[label]:.4g}" for label in SHOWN if label in self.shown)

    def _print(self) -> None:
        seconds = time.monotonic() - self.started
        now = self._now()
        where = f"step {self.step}" + (f"/{self.total}" if self.total else "") + ", " if self.step else ""
        where = where or ("" if now and not self.counts_steps else "starting, ")
        line = f"{self.stage}: {where}{now}{seconds:.0f} s  {self._figures()}"
        print(line.rstrip(), file=self.out, flush=True)
        self.printed, self.printed_step = time.monotonic(), self.step


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
