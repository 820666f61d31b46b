"""The starts of a stage: when each began, what it did, why it ended, and what faults have cost.

A long stage is a chain of starts: one job that goes back to the queue at each time limit and after each fault, and
perhaps further jobs. RUN/<stage>/starts.jsonl holds what the jobs say of their starts, two lines each; of a stage
without Slurm, attempts.jsonl is the chain.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retool_mcore.files import read_json_lines
from retool_mcore.state import heartbeat
from retool_mcore.state.progress import Steps, attempt_files, metric

FILE = "starts.jsonl"
RECENT_STEPS = 10  # over which a step's time is taken
# Why a start ended.
COMPLETE, TIME_LIMIT, REQUEST, CANCELLED = "complete", "time limit", "asked to stop", "cancelled"
FAULT, PREEMPTION, ALARM, WRONG_INPUT, OTHER_JOB = "fault", "preemption", "alarm", "wrong input", "another job"
COSTLY = (FAULT, PREEMPTION)
OUTCOMES = {"complete": COMPLETE, "failed": FAULT, "stopped": "stopped", "went back": ALARM}  # of attempts.jsonl


def begin(folder: Path, mark: str, nodes: Sequence[str]) -> None:
    """Record that the start `mark` (JOB-NUMBER, from 0) begins on `nodes`."""
    attempt = max(attempt_files(folder), default=0) + 1  # its number, where the start comes to an attempt
    _append(folder, {"start": mark, "nodes": [*nodes], "began": _now(), "attempt": attempt})


def end(folder: Path, mark: str, why: str, text: str = "", avoids: Sequence[str] = ()) -> None:
    """Record why the start `mark` ends. `text`: the sentence of its log; `avoids`: nodes that the next keeps off."""
    line = {"start": mark, "ended": _now(), "why": why, "text": text.strip().partition("\n")[0]}
    _append(folder, line | ({"avoids": [*avoids]} if avoids else {}))


def _append(folder: Path, line: Mapping[str, Any]) -> None:
    with suppress(OSError):  # a full disk, say: the job that ends must still find its way back to the queue
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Start:
    """One start of a stage. Times are in seconds since the epoch, None where nobody has recorded them.

    job: "" without Slurm.
    number: from 1, of this job.
    steps: first and last step that it ended; None for none.
    kept_s: seconds of those steps that no later start did again.
    why: "" while it runs.
    """

    job: str
    number: int
    nodes: list[str]
    began: float | None
    ended: float | None = None
    steps: tuple[int, int] | None = None
    kept_s: float = 0.0
    why: str = ""
    text: str = ""
    avoids: list[str] = field(default_factory=list)


@dataclass
class Chain:
    """A stage's starts, in order.

    lost_s: why -> seconds that starts which ended so have cost: all of their time but that of the steps that were kept,
        and the wait until the next start.
    avoided: nodes that the newest job keeps off.
    next_save, complete_at: seconds since the epoch, None where it is not known or the stage does not run.
    """

    starts: list[Start]
    lost_s: dict[str, float]
    avoided: list[str]
    next_save: float | None = None
    complete_at: float | None = None


def read(folder: Path, total: int | None = None, now_s: float | None = None) -> Chain:
    """The chain of the stage in `folder`, `total` its steps where that is known."""
    now_s = datetime.now(UTC).timestamp() if now_s is None else now_s
    source = Steps(folder)
    done = source.read()
    starts = _starts(folder, source.attempts)
    worked, lost = _that_worked(starts), dict[str, float]()
    for start, later in zip(worked, [*worked[1:], None], strict=False):
        if start.why in COSTLY and start.began is not None and start.ended is not None:
            wait = max(later.began - start.ended, 0.0) if later and later.began is not None else 0.0
            cost = max(start.ended - start.began - start.kept_s, 0.0) + wait
            lost[start.why] = lost.get(start.why, 0.0) + cost
    chain = Chain(starts, lost, _avoided(worked))
    if worked and not worked[-1].why:
        beat = heartbeat.read(folder).get(heartbeat.TRAINER, {})
        chain.next_save = beat.get("next_save")
        chain.complete_at = _forecast(worked, done, total, now_s)
    return chain


def _starts(folder: Path, attempts: Mapping[int, Mapping[int, Mapping]]) -> list[Start]:
    lines: dict[str, dict] = {}
    for line in read_json_lines(folder / FILE):
        lines.setdefault(line.get("start", ""), {}).update(line)
    records = {one["attempt"]: one for one in read_json_lines(folder / "attempts.jsonl") if "attempt" in one}
    # A start that ended before its attempt began has the number of the next one's.
    last = {line.get("attempt"): mark for mark, line in lines.items() if line.get("why") != OTHER_JOB}
    of_jobs = {number for number, mark in last.items() if mark}
    starts = []
    for mark, line in lines.items():
        own = line.get("attempt") if last.get(line.get("attempt")) == mark else None
        job, _, number = mark.partition("-")
        start = Start(job, int(number or 0) + 1, line.get("nodes", []), _time(line.get("began")))
        start.ended, start.why = _time(line.get("ended")), line.get("why", "")
        start.text, start.avoids = line.get("text", ""), line.get("avoids", [])
        _add_steps(start, own, attempts)
        starts.append(start)
    for number in sorted({*attempts, *records} - of_jobs):
        record = records.get(number, {})
        began = _time(record.get("started"))
        ended = began + record["seconds"] if began is not None and "seconds" in record else None
        start = Start("", number, [], began, ended, why=OUTCOMES.get(record.get("outcome", ""), ""))
        _add_steps(start, number, attempts)
        starts.append(start)
    starts.sort(key=lambda start: start.began or 0.0)
    worked = _that_worked(starts)
    for start, later in zip(worked, worked[1:], strict=False):
        if not start.why:  # killed with its node, or without Slurm outright
            start.why, start.text = FAULT, "it ended without a word"
            start.ended = start.ended or later.began
    return starts


def _that_worked(starts: Sequence[Start]) -> list[Start]:
    """Without those that were sent away for the sake of another job, which was at work before and after."""
    return [start for start in starts if start.why != OTHER_JOB]


def _add_steps(start: Start, attempt: int | None, attempts: Mapping[int, Mapping[int, Mapping]]) -> None:
    own = attempts.get(attempt, {}) if attempt is not None else {}
    if not own or attempt is None:
        return
    start.steps = min(own), max(own)
    again = min((min(steps) for number, steps in attempts.items() if number > attempt and steps), default=max(own) + 1)
    start.kept_s = sum(seconds_of(data) for step, data in own.items() if step < again)


def seconds_of(data: Mapping[str, float]) -> float:
    """The time of a step by its metrics; 0 where they do not name it."""
    seconds = metric(data, "timing_s/step")
    return (metric(data, "step_seconds") if seconds is None else seconds) or 0.0


def _avoided(starts: Sequence[Start]) -> list[str]:
    jobs = [start.job for start in starts]
    return sorted({node for start in starts if jobs and start.job == jobs[-1] for node in start.avoids})


def _forecast(starts: Sequence[Start], done: Mapping[int, Mapping], total: int | None, now_s: float) -> float | None:
    """When the stage is complete if all goes on as so far: starts, saves, waits and faults included."""
    recent = [seconds for data in [*done.values()][-RECENT_STEPS:] if (seconds := seconds_of(data))]
    kept, began = (
        sum(start.kept_s for start in starts),
        min((s.began for s in starts if s.began is not None), default=None),
    )
    if not total or not recent or not kept or began is None:
        return None
    stretch = max((now_s - began) / kept, 1.0)
    return now_s + (total - max(done)) * statistics.median(recent) * stretch


def _time(text: str | None) -> float | None:
    return datetime.fromisoformat(text).timestamp() if text else None
